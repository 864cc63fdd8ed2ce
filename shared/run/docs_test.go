package run

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"
)

// TestDocsAreNotHeld: the files of the reference are sent as they are embedded. A process that was asked for one held
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
