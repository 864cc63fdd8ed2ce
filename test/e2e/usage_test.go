//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// usage is what the pods of functions use, as the kernel counts it: of the test cluster, whose node is this machine.
// The group of all pods counts the processor time of those that have ended, too, and the pods of Knative stay. So the
// difference is all that functions have used, however short their pods were.
type usage struct {
	cpu, memory string   // groups of all pods
	others      []string // groups of the pods that are no function's, for the processor
	began       time.Time
	all, rest   time.Duration // processor time at the begin: of all pods, and of the others
	machine     time.Duration

	samples   int
	sum, peak int64 // bytes
}

// podGroups are where the cluster's kubelet puts pods: cgroup v2, or v1 with a tree for each controller.
const podGroups = "cloudfn-cluster/kubepods"

func newUsage(t testing.TB) *usage {
	t.Helper()
	u := &usage{began: time.Now()}
	for _, tree := range [][2]string{{"", ""}, {"cpuacct", "memory"}} {
		cpu := filepath.Join("/sys/fs/cgroup", tree[0], podGroups)
		if _, err := processorTime(cpu); err == nil {
			u.cpu, u.memory = cpu, filepath.Join("/sys/fs/cgroup", tree[1], podGroups)
		}
	}
	if u.cpu == "" {
		t.Log("what pods use is only measured on the test cluster, which runs on this machine")
		return nil
	}
	listed := command(t, "kubectl", "get", "pods", "-A", "-o",
		`go-template={{range .items}}{{.metadata.namespace}} {{.metadata.uid}} `+
			`{{with index .metadata.labels "serving.knative.dev/service"}}{{.}}{{end}}{{"\n"}}{{end}}`)
	for line := range strings.Lines(listed) {
		fields := strings.Fields(line)
		isFunction := len(fields) == 3 && fields[0] == namespace && fields[2] != "sink"
		if group := podGroup(u.cpu, fields[1]); !isFunction && group != "" {
			u.others = append(u.others, group)
		}
	}
	u.all, u.rest, u.machine = u.read()
	return u
}

// podGroup finds the group of a pod, "" if it has none.
func podGroup(root, uid string) string {
	for _, pattern := range []string{"pod" + uid, "*/pod" + uid} {
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// processorTime is what a group has used so far.
func processorTime(group string) (time.Duration, error) {
	if text, err := os.ReadFile(filepath.Join(group, "cpuacct.usage")); err == nil { // nanoseconds
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		return time.Duration(n), err
	}
	n, err := field(filepath.Join(group, "cpu.stat"), "usage_usec")
	return time.Duration(n) * time.Microsecond, err
}

// workingSet is the memory of a group that the kernel cannot simply drop.
func workingSet(group string) (int64, error) {
	for current, inactive := range map[string]string{
		"memory.current": "inactive_file", "memory.usage_in_bytes": "total_inactive_file",
	} {
		text, err := os.ReadFile(filepath.Join(group, current))
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		if err != nil {
			return 0, err
		}
		dropped, err := field(filepath.Join(group, "memory.stat"), inactive)
		return n - dropped, err
	}
	return 0, os.ErrNotExist
}

// field reads a number of a file with a name and a number in each line.
func field(file, name string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if value, isIt := strings.CutPrefix(lines.Text(), name+" "); isIt {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// read returns the processor time of all pods, of those that are no function's, and of the whole machine.
func (u *usage) read() (all, rest, machine time.Duration) {
	all, _ = processorTime(u.cpu)
	for _, group := range u.others {
		used, _ := processorTime(group)
		rest += used
	}
	text, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(text), "\n")
	for n, ticks := range strings.Fields(first) {
		if n == 0 || n == 4 || n == 5 || n > 8 { // the name, idle, waiting for disks, guests
			continue
		}
		used, _ := strconv.ParseInt(ticks, 10, 64)
		machine += time.Duration(used) * (time.Second / 100)
	}
	return all, rest, machine
}

// add adds the memory of pods of functions, those that are ending too.
func (u *usage) add(uids []string) {
	var sum int64
	for _, uid := range uids {
		if group := podGroup(u.memory, uid); group != "" {
			used, _ := workingSet(group)
			sum += used
		}
	}
	u.samples++
	u.sum += sum
	u.peak = max(u.peak, sum)
}

// String says what functions have used since the begin.
func (u *usage) String() string {
	all, rest, machine := u.read()
	const mb = 1 << 20
	all, rest, machine = all-u.all, rest-u.rest, machine-u.machine
	return fmt.Sprintf("in %s the pods of functions used %.1f s of a processor, and %d MB of memory on average, "+
		"%d at the most; Knative's pods used %.1f s, the whole machine %.1f s", time.Since(u.began).Round(time.Second),
		(all - rest).Seconds(), u.sum/int64(max(u.samples, 1))/mb, u.peak/mb, rest.Seconds(), machine.Seconds())
}
