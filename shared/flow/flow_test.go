package flow

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestCoalescer: requests during a run make one more run together.
func TestCoalescer(t *testing.T) {
	t.Parallel()
	var c Coalescer
	run := c.Begin()
	if run == nil || c.Begin() != nil || c.Begin() != nil {
		t.Fatal("not exactly one caller has to run")
	}
	if run.Done() || !run.Done() {
		t.Error("the run was not repeated exactly once")
	}
	next := c.Begin()
	if run.Stop(); next == nil || c.Begin() != nil {
		t.Error("a run that has ended has stopped the next one")
	}
	if next.Stop(); !c.Begin().Done() {
		t.Error("a stopped run left a request behind")
	}
}

// TestSleep ends with its context.
func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if !Sleep(ctx, 400*time.Millisecond) || Sleep(ctx, time.Hour) || time.Since(began) != time.Second {
			t.Errorf("it took %s", time.Since(began))
		}
	})
}
