//go:build bench

package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

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
