//go:build bench

package bench

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
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

// memory reads a line of /proc/PID/status: VmRSS is what a process holds now, VmHWM the most that it held, in MB.
func memory(pid int, key string) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kb / 1024
		}
	}
	return 0
}

// processorTime is what this process has used of the processors, in ms.
func processorTime() float64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only for what is no process
	return ms(time.Duration(usage.Utime.Nano() + usage.Stime.Nano()))
}

// tick of the kernel's clock in /proc/PID/stat: always 1/100 s towards programs.
const clockTick = 10.0 // ms

// cpuTime is what a process has used of the processors, in ms.
func cpuTime(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(text), ") ") // the name before it may hold spaces
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) * clockTick
}
