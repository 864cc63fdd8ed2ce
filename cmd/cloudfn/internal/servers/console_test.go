package servers

import (
	"net/http"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
)

// TestConsole prints a log without what would command the terminal, and the URL of a remote console.
func TestConsole(t *testing.T) {
	t.Parallel()
	a, out, _ := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = w.Write([]byte(`{"type": "novnc", "url": "https://console.example.com/?token=t"}`))
			return
		}
		_, _ = w.Write([]byte(`{"output": "a\tb\n` + `\u001b[2Jé\n"}`))
	})
	for _, tc := range []struct{ flag, want string }{
		{"--lines=2", "a\tb\n\uFFFD[2Jé\n"}, {"--url", "https://console.example.com/?token=t\n"},
	} {
		out.Reset()
		cmd := Command(a)
		cmd.SetArgs([]string{"console", uuid.NewString(), tc.flag})
		if err := cmd.ExecuteContext(t.Context()); err != nil || out.String() != tc.want {
			t.Errorf("%s: got %q, %v", tc.flag, out, err)
		}
	}
}
