//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// sampleEvery is the time between two samples of the pods.
const sampleEvery = 2 * time.Second

// sampler records which functions have a pod, and what their pods use.
type sampler struct {
	usage *usage // nil = of a cluster elsewhere
	stop  chan struct{}
	ended sync.WaitGroup

	mu     sync.Mutex
	began  time.Time
	taken  []sample
	failed int // samples to which the cluster gave no answer
}

// sample is how many pods each function has, without those that are ending.
type sample struct {
	at   time.Time
	took time.Duration // since the sample before
	pods map[string]int
}

// startSampler samples until the test ends, or until end is called.
func startSampler(t *testing.T) *sampler {
	t.Helper()
	s := &sampler{stop: make(chan struct{}), began: time.Now()}
	s.usage = newUsage(t)
	s.ended.Go(func() {
		last := s.began
		for {
			select {
			case <-s.stop:
				return
			case <-time.After(time.Until(last.Add(sampleEvery))):
			}
			now := time.Now()
			s.take(now, now.Sub(last))
			last = now
		}
	})
	t.Cleanup(s.end)
	return s
}

// end stops sampling. It may be called twice.
func (s *sampler) end() {
	s.mu.Lock()
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	s.mu.Unlock()
	s.ended.Wait()
}

// Each line is a pod of a Knative Service: the Service, the pod's uid, and when its deletion began.
const podLines = `{{range .items}}{{index .metadata.labels "serving.knative.dev/service"}} {{.metadata.uid}} ` +
	`{{with .metadata.deletionTimestamp}}{{.}}{{end}}{{"\n"}}{{end}}`

func (s *sampler) take(now time.Time, took time.Duration) {
	out, err := try("kubectl", "-n", namespace, "get", "pods", "-l", "serving.knative.dev/service", "-o",
		"go-template="+podLines)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed++
		return
	}
	found := sample{at: now, took: took, pods: map[string]int{}}
	var uids []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] == "sink" {
			continue
		}
		uids = append(uids, fields[1])
		if len(fields) == 2 {
			found.pods[fields[0]]++
		}
	}
	s.taken = append(s.taken, found)
	if s.usage != nil {
		s.usage.add(uids)
	}
}

// present is for how long each function had a pod between two moments.
func (s *sampler) present(from, until time.Time) map[string]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := map[string]time.Duration{}
	for _, l := range s.taken {
		if l.at.After(from) && !l.at.After(until) {
			for function := range l.pods {
				sum[function] += l.took
			}
		}
	}
	return sum
}

// most is how many pods of a function there were at the most.
func (s *sampler) most(function string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.taken {
		n = max(n, l.pods[function])
	}
	return n
}

// failures is how many samples failed, of how many.
func (s *sampler) failures() (failed, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed, s.failed + len(s.taken)
}

// table shows for how many seconds of each minute each function had a pod. A function that had none is not in it.
func (s *sampler) table(until time.Time) string {
	names := slices.Sorted(maps.Keys(s.present(s.began, until)))
	var text strings.Builder
	fmt.Fprintf(&text, "seconds with a pod, by minute, from %s on\n  minute", s.began.UTC().Format("15:04:05"))
	for _, name := range names {
		fmt.Fprintf(&text, "  %s", name)
	}
	for n, from := 1, s.began; from.Before(until); n, from = n+1, from.Add(time.Minute) {
		fmt.Fprintf(&text, "\n%8d", n)
		sum := s.present(from, from.Add(time.Minute))
		for _, name := range names {
			fmt.Fprintf(&text, "  %*.0f", len(name), sum[name].Seconds())
		}
	}
	return text.String()
}

// bySecond shows how many pods a function has each few seconds, from a moment on, as "2s:1 4s:1 6s:3".
func (s *sampler) bySecond(function string, from time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, l := range s.taken {
		if l.at.After(from) {
			all = append(all, fmt.Sprintf("%.0fs:%d", l.at.Sub(from).Seconds(), l.pods[function]))
		}
	}
	return strings.Join(all, " ")
}
