package run

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestStatusIsShared: a thousand callers of GET /v1/status cause one check of Postgres and one of Keystone.
func TestStatusIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int64
		var isDown atomic.Bool
		d := &dependencies{
			postgres: func(context.Context) error {
				checks.Add(1)
				time.Sleep(time.Second)
				return nil
			},
			keystone: func(ctx context.Context) error {
				checks.Add(1)
				if !isDown.Load() {
					return nil
				}
				<-ctx.Done()
				return apperr.Wrap(apperr.Unavailable, ctx.Err(), "keystone cannot be reached")
			},
		}
		query := func(keystone bool, after time.Duration) {
			began := time.Now()
			var all sync.WaitGroup
			for range 1000 {
				all.Go(func() {
					if got := d.check(); !got.postgres.Reachable || got.keystone.Reachable != keystone {
						t.Errorf("got %+v", got)
					}
				})
			}
			all.Wait()
			if took := time.Since(began); took != after {
				t.Errorf("it took %s, want %s", took, after)
			}
		}
		query(true, time.Second)
		isDown.Store(true)
		query(true, 0) // still valid
		time.Sleep(statusTTL)
		query(false, statusTimeout)
		if n := checks.Load(); n != 4 {
			t.Errorf("there were %d checks, want 4", n)
		}
	})
}

// TestDocsAreNotHeld: the files of the reference are sent as they are embedded. A process that sent one held
// 2.8 MB of them from then on.
func TestDocsAreNotHeld(t *testing.T) {
	const name = "swagger-ui-bundle.js"
	file, isZipped, err := openDocs(name)
	if err != nil || !isZipped {
		t.Fatalf("%s is zipped: %t, %v", name, isZipped, err)
	}
	var zipped, plain bytes.Buffer
	if err := copyDocs(&zipped, file, false); err != nil {
		t.Fatal(err)
	}
	again, _, err := openDocs(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := copyDocs(&plain, again, true); err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(&zipped)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := io.ReadAll(unzipped); err != nil || !bytes.Equal(plain.Bytes(), want) || len(want) < 1<<20 {
		t.Errorf("unzipped it has %d bytes, want %d: %v", plain.Len(), len(want), err)
	}
	for _, name := range []string{".", "..", "absent.js", "../docs.go", "docs", ""} {
		if _, _, err := openDocs(name); err == nil {
			t.Errorf("%q is a file", name)
		}
	}
	if got := testing.AllocsPerRun(10, func() {
		if file, _, err := openDocs(name); err != nil || copyDocs(io.Discard, file, false) != nil {
			t.Error("it is not sent")
		}
	}); got > 20 {
		t.Errorf("%.0f allocations, want 20 at most", got)
	}
}
