package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestResults reads what go test prints of tests that pass, fail, are skipped and panic.
func TestResults(t *testing.T) {
	t.Parallel()
	const mod = "github.com/cloudfn/cloudfn/"
	lines := strings.ReplaceAll(`{"Action":"start","Package":"MODa"}
{"Action":"output","Package":"MODa","Test":"TestGood","Output":"what a good test says\n"}
{"Action":"output","Package":"MODa","Test":"TestGood","Output":"    sandbox.go:52: waited 8.5 s for its turn\\n"}
{"Action":"pass","Package":"MODa","Test":"TestGood","Elapsed":40}
{"Action":"output","Package":"MODa","Test":"TestBad","Output":"why it is bad\n"}
{"Action":"fail","Package":"MODa","Test":"TestBad","Elapsed":1}
{"Action":"output","Package":"MODa","Test":"TestCloud","Output":"cloud.go:1: left out: it needs the sandbox cloud\n"}
{"Action":"skip","Package":"MODa","Test":"TestCloud","Elapsed":0}
{"Action":"output","Package":"MODa","Test":"TestLazy","Output":"not today\n"}
{"Action":"skip","Package":"MODa","Test":"TestLazy","Elapsed":0}
{"Action":"fail","Package":"MODa","Elapsed":40}
{"Action":"output","Package":"MODb","Test":"TestHalf","Output":"panic: oh\n"}
{"Action":"fail","Package":"MODb","Elapsed":10}
{"ImportPath":"MODc","Action":"build-output","Output":"c.go:1: no such thing\n"}
this is no event
`, "MOD", mod)
	var out bytes.Buffer
	r := newResults(&out)
	if err := r.read(strings.NewReader(lines)); err != nil {
		t.Fatal(err)
	}
	r.print()
	for _, want := range []string{
		"31.5 s      a TestGood\n", "FAIL a TestBad\nwhy it is bad\n", "SKIPPED a TestLazy\nnot today\n", "panic: oh\n",
		"c.go:1: no such thing\n", "this is no event\n", "  80 %  a\n", "  20 %  b\n", "LEFT OUT: 1 tests",
		"\n1 passed, 1 failed, 2 skipped\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "what a good test says") {
		t.Error("the output of a test that passed was printed")
	}
}

// TestSummary adds up what several runs have appended.
func TestSummary(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "times")
	for _, times := range [][]taken{{{"a", 30}}, {{"b", 10}}} {
		if err := appendTimes(file, times); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := summary(&out, file); err != nil || !strings.Contains(out.String(), "30.0 s   75 %  a\n") {
		t.Errorf("got %v %s", err, out.String())
	}
	if err := os.WriteFile(file, []byte("no time"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := summary(&out, file); err == nil {
		t.Error("a file of something else was accepted")
	}
}
