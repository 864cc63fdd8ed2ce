package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// TestManyThatBreakOff: what came of the servers that were asked for is shown, although the request for the others failed.
func TestManyThatBreakOff(t *testing.T) {
	t.Parallel()
	asked := 0
	client := clientOf(t, func(w http.ResponseWriter, req *http.Request) {
		if asked++; asked > 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var body api.ServersAction
		_ = json.NewDecoder(req.Body).Decode(&body)
		results := []outcome{}
		for _, id := range body.Ids {
			results = append(results, outcome{ID: id, State: "deleting", Changed: true})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
	})
	var targets []target
	for n := range mostTargets + 1 {
		targets = append(targets, target{given: fmt.Sprintf("web-%d", n), id: fmt.Sprintf("id-%d", n)})
	}
	var shown bytes.Buffer
	s := &servers{app: &app{running: true, print: output.Printer{Out: &shown, Format: "table"}}}
	err := s.act(t.Context(), client, targets, api.ServerAction{Action: api.ServerActionActionDelete}, waiting{})
	if s.code(err) != exitAway || !strings.Contains(err.Error(), "of the servers that are not listed it is not known") {
		t.Errorf("it ends with %v", err)
	}
	if text := shown.String(); strings.Count(text, "accepted") != mostTargets || strings.Contains(text, fmt.Sprintf("web-%d ", mostTargets)) {
		t.Errorf("it shows\n%s", text)
	}
}

// TestAWaitThatBreaksOff says which order it was: the token has ended, and nothing that was shown before has the id.
func TestAWaitThatBreaksOff(t *testing.T) {
	t.Parallel()
	const answer = `{"id": "o", "status": "running", "instances": [{"id": "i", "name": "web", "state": "building"}]}`
	client := clientOf(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"detail": "the token has expired", "code": "unauthenticated"}`)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, answer)
	})
	a := &app{running: true, name: "cloudfn", err: new(bytes.Buffer), out: new(bytes.Buffer), now: time.Now, client: client}
	l := launch{id: "o", order: order{"id": json.RawMessage(`"o"`)}, flags: launchFlags{wait: waiting{on: true, limit: time.Minute}}}
	err := a.launch(t.Context(), l)
	if a.code(err) != exitRefused || !strings.Contains(err.Error(), "the token has expired. The order is placed: follow it by cloudfn orders show o --wait") {
		t.Errorf("it ends with %d: %v", a.code(err), err)
	}
}
