package launch

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// TestAWaitThatBreaksOff says which order it was: the token has ended, and nothing that was shown before has the id.
func TestAWaitThatBreaksOff(t *testing.T) {
	t.Parallel()
	const answer = `{"id": "o", "status": "running", "instances": [{"id": "i", "name": "web", "state": "building"}]}`
	a, _, _ := clitest.New(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"detail": "the token has expired", "code": "unauthenticated"}`)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, answer)
	})
	l := launch{App: a, id: "o", order: order{"id": "o"}, wait: cli.Wait{IsOn: true, Limit: time.Minute}}
	err := l.run(t.Context())
	if a.Code(err) != exit.Denied || !strings.Contains(err.Error(),
		"the token has expired. The order is placed: follow it by cloudfn orders show o --wait") {
		t.Errorf("it ends with %d: %v", a.Code(err), err)
	}
}
