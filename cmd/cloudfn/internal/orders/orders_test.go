package orders

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
)

// TestName shows an order by the name that it was launched with, as far as its servers' names tell it.
func TestName(t *testing.T) {
	t.Parallel()
	for want, names := range map[string][]string{
		"": {}, "web-1": {"web-1"}, "guest": {"guest-1", "guest-2"}, "a-b": {"a-b-1", "a-b-12"},
		"web (and 1 more)": {"web", "db"}, "web-1 (and 1 more)": {"web-1", "db-2"}, "x- (and 1 more)": {"x-", "x-1"},
	} {
		o := api.Order{}
		for _, name := range names {
			o.Instances = append(o.Instances, api.Instance{Name: name})
		}
		if got := name(o); got != want {
			t.Errorf("%q: got %q, want %q", names, got, want)
		}
	}
}

// TestOrderByName finds the order whose servers have a name; of several the one that runs.
func TestOrderByName(t *testing.T) {
	t.Parallel()
	const done, running, pair = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01", "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e02",
		"019b7c5e-7f60-7a88-b14f-6d0e5a4c3e03"
	const order = `{"id": %q, "status": %q, "instances": [%s]}`
	var within []string
	serve := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/launch" {
			fmt.Fprintf(w, order, path.Base(r.URL.Path), "done", `{"name": "web", "key_name": "cloudfn-`+pair+`"}`)
			return
		}
		within = append(within, r.URL.Query().Get("connection_id"))
		fmt.Fprintf(w, `{"orders": [`+order+", "+order+", "+order+`], "next": null}`, done, "done", `{"name": "web"}`,
			running, "running", `{"name": "web"}`, pair, "done", `{"name": "db-1"}, {"name": "db-2"}`)
	}
	for arg, want := range map[string]string{
		"web": running, "db": pair, done: done, "dbs": `there is no order "dbs"; did you mean "db"?`,
		"nothing": `there is no order "nothing": cloudfn orders list shows those that there are`,
	} {
		a, out, _ := clitest.New(t, serve)
		cmd := show(a)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{arg, "--connection", pair})
		err := cmd.ExecuteContext(t.Context())
		if err != nil && err.Error() != want || err == nil && !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v %s", arg, err, out)
		}
		if err == nil && !strings.Contains(out.String(), "Key:      cloudfn-"+pair) {
			t.Errorf("%s: the key pair is not shown: %s", arg, out)
		}
	}
	if slices.ContainsFunc(within, func(id string) bool { return id != pair }) || len(within) != 4 {
		t.Errorf("the orders of %v are listed", within)
	}
}
