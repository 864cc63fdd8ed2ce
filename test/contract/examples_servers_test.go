package contract_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// consoles are those of a server of the sandbox, which has logs only, and of a Nova that has only remote consoles.
func (s *story) consoles(t *testing.T, server string) {
	t.Helper()
	s.ok(t, "getServerConsole", 200, ask{query: []string{"lines=2"}})
	s.ok(t, "openServerConsole", 409, ask{})
	const opened = `{"remote_console": {"protocol": "vnc", "type": "novnc", "url": "https://console.example.com/?token=t"}}`
	nova := testkit.Instead(t, testkit.Endpoint(t, "compute"), func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, server+"/") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/remote-consoles") {
			_, _ = w.Write([]byte(opened))
			return true
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"itemNotFound": {"message": "Guest does not have a console available."}}`))
		return true
	})
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo")
	other := spawn(t, testkit.Database(t), env).As(s.project.Token(t))
	s.ok(t, "openServerConsole", 200, ask{client: other})
	s.ok(t, "getServerConsole", 409, ask{client: other})
}
