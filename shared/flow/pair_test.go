package flow

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPair: one works, one waits until it has left, and a third has nothing to do. One whose time is over waits no
// longer, and lets another one wait.
func TestPair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewPair()
		leave, err := p.Enter(t.Context())
		if leave == nil || err != nil {
			t.Fatalf("the first may not work: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if late, err := p.Enter(short); late != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one whose time is over: may work %v, %v", late != nil, err)
		}
		entered := make(chan func())
		go func() {
			leave, err := p.Enter(t.Context())
			if err != nil {
				t.Error(err)
			}
			entered <- leave
		}()
		synctest.Wait()
		if third, err := p.Enter(t.Context()); third != nil || err != nil {
			t.Errorf("the third: may work %v, %v", third != nil, err)
		}
		select {
		case <-entered:
			t.Error("the second works beside the first")
		default:
		}
		leave()
		second := <-entered
		if second == nil {
			t.Fatal("the second may not work")
		}
		second()
		if leave, err := p.Enter(t.Context()); leave == nil || err != nil {
			t.Errorf("afterwards nobody may work: %v", err)
		}
	})
}
