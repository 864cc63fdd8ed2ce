//go:build bench

package bench

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// alternate runs every side once per round, forwards and backwards by turns (A B, B A, A B ...), so that what
// drifts on the machine meanwhile hits all of them alike.
func alternate(rounds int, sides ...func()) {
	for range rounds {
		for _, side := range sides {
			side()
		}
		slices.Reverse(sides)
	}
}

func median(values []float64) float64 { return percentile(values, 50) }

func percentile(values []float64, p int) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// timed is how many milliseconds a call takes.
func timed(call func()) float64 {
	began := time.Now()
	call()
	return ms(time.Since(began))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// showMS writes milliseconds with three digits that mean something.
func showMS(v float64) string {
	switch {
	case v < 0.1:
		return fmt.Sprintf("%.2f us", v*1000)
	case v < 10:
		return fmt.Sprintf("%.2f ms", v)
	case v < 10_000:
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.1f s", v/1000)
}

func showMB(v float64) string { return fmt.Sprintf("%.1f MB", v) }

// crowd makes n clients call at the same time, each again as soon as it is answered, and gives the time of
// every call in milliseconds and the time of all.
func crowd(clients, calls int, call func() error) (each []float64, all time.Duration, failed error) {
	each = make([]float64, clients*calls)
	errs := make([]error, clients)
	var group sync.WaitGroup
	began := time.Now()
	for c := range clients {
		group.Go(func() {
			for i := range calls {
				var err error
				each[c*calls+i] = timed(func() { err = call() })
				if err != nil {
					errs[c] = err
				}
			}
		})
	}
	group.Wait()
	all = time.Since(began)
	for _, err := range errs {
		if err != nil {
			failed = err
		}
	}
	return each, all, failed
}
