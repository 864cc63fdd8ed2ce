package contract_test

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestReference is served whole to whoever asks, and may use its own style and nothing else.
func TestReference(t *testing.T) {
	t.Parallel()
	app := testkit.Spawn(t, testkit.DaemonEnv(t, testkit.Database(t)))
	a := app.Get(t, "/v1/docs")
	page := string(a.Body)
	_, style, _ := strings.Cut(page, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	hash := sha256.Sum256([]byte(style))
	want := "style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
	if policy := a.Header.Get("Content-Security-Policy"); a.Status != 200 || len(style) < 1000 || !strings.Contains(policy, want) || strings.Contains(policy, "script") {
		t.Errorf("got %d, %q, want %s for a style of %d bytes", a.Status, policy, want, len(style))
	}
	for id, o := range newExamples(t).operations {
		if !strings.Contains(page, `<article id="`+id+`">`) {
			t.Errorf("%s %s is not on the page: run `make generate`", o.method, o.path)
		}
	}
}
