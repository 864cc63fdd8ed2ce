//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
