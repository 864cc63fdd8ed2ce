package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// TestAnActionIsSentAgain under the same id when its answer is lost, and waited for while cloudfn is at work on it.
func TestAnActionIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		breaks, busy int
		given, want  string // the id given by --id, and what the error has
	}{
		"answered":        {want: ""},
		"lost twice":      {breaks: 2, busy: 1},
		"lost each time":  {breaks: 100, given: "the-id", want: "add --id the-id"},
		"refused at once": {busy: 100, want: "being worked on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex // a handler may still run when its connection has ended
			ids, n := map[string]int{}, 0
			client := clientOf(t, func(w http.ResponseWriter, req *http.Request) {
				var body api.ServerAction
				_ = json.NewDecoder(req.Body).Decode(&body)
				mu.Lock()
				defer mu.Unlock()
				ids[value(body.ID)]++
				switch n++; {
				case n <= tc.breaks:
					panic(http.ErrAbortHandler)
				case n <= tc.breaks+tc.busy:
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusConflict)
					fmt.Fprint(w, `{"detail": "it is being worked on", "code": "conflict"}`)
				default:
					fmt.Fprint(w, `{"id": "s", "state": "rebooting", "changed": true}`)
				}
			})
			var shown bytes.Buffer
			s := &servers{app: &app{running: true, err: new(bytes.Buffer), print: output.Printer{Out: &shown, Format: "table"}}}
			body := api.ServerAction{Action: api.ServerActionActionReboot, ID: optional(tc.given)}
			err := s.act(t.Context(), client, []target{{given: "web", id: "s"}}, body, waiting{})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("it ends with %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(ids) != 1 || ids[""] != 0 || tc.given != "" && ids[tc.given] == 0 {
				t.Errorf("it was sent under the ids %v", ids)
			}
			if want := min(tc.breaks, resends+1) + 1; tc.want == "" && n != want+tc.busy {
				t.Errorf("it was sent %d times", n)
			}
		})
	}
}
