//go:build bench

package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// exporterEnv makes this test binary the peer of the counting measurement: it holds the fake cloud's URL.
const exporterEnv = "BENCH_EXPORTER"

// exporterReport is what the peer found and used, on its standard output.
type exporterReport struct {
	Counts map[string]projectCount
	Took   float64 // ms
	CPU    float64 // ms
	Peak   float64 // MB
}

type projectCount struct{ Running, Total int }

// exporterMain counts the servers of each project as openstack-exporter does, in a process of its own, so that
// its memory is its own.
func exporterMain(url string) int {
	report := exporterReport{Counts: map[string]projectCount{}}
	busy := cpuTime(os.Getpid())
	began := time.Now()
	all, err := listAllServers(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := range all {
		c := report.Counts[all[i].TenantID]
		c.Total++
		if all[i].Status == "ACTIVE" {
			c.Running++
		}
		report.Counts[all[i].TenantID] = c
	}
	report.Took, report.CPU = ms(time.Since(began)), cpuTime(os.Getpid())-busy
	report.Peak = memory(os.Getpid(), "VmHWM")
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		return 1
	}
	return 0
}

func runExporter(t *testing.T, url string) exporterReport {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), exporterEnv+"="+url)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(t, err)
	var report exporterReport
	must(t, json.Unmarshal(out, &report))
	return report
}
