//go:build bench

package bench

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(exporterEnv); url != "" {
		os.Exit(exporterMain(url)) // this binary, started once more as the peer of the counting measurement
	}
	if url := os.Getenv(floodEnv); url != "" {
		os.Exit(floodMain(url)) // the strangers of the flood
	}
	if rows := os.Getenv("ROWS"); rows != "" {
		tests, err := testsOf(rows)
		if err == nil {
			err = flag.Set("test.run", tests)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	before := conditions()
	code := m.Run()
	testkit.RemoveBinary()
	fmt.Print(before)
	fmt.Printf("At the end the load was %s.\n\n", load())
	printResults(os.Stdout)
	printWays(os.Stdout)
	os.Exit(code)
}

// conditions is what a reader must know to judge the numbers.
func conditions() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, %s, %d cores of %s\n", time.Now().UTC().Format(time.RFC3339), runtime.Version(),
		runtime.NumCPU(), cpu())
	version, err := exec.Command("psql", "--version").Output()
	if err == nil {
		fmt.Fprintf(&s, "%s, fsync on\n", strings.TrimSpace(string(version)))
	}
	fmt.Fprintf(&s, "Load of the machine before the run: %s (1, 5, 15 minutes). ", load())
	return s.String()
}

func cpu() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, "\t :\n")
		}
	}
	return "an unknown processor"
}

func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}
