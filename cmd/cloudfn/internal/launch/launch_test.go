package launch

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
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

// TestWrongLease: the error has all that --lease takes, or what a time lacks.
func TestWrongLease(t *testing.T) {
	t.Parallel()
	for given, wants := range map[string][]string{
		"soon":             {"P1M (a month)", "2027-01-01T18:00:00Z"},
		"2026-12-01":       {"--lease: must have an offset from UTC", "2026-12-01T00:00:00Z in UTC"},
		"2026-12-01 18:00": {"2026-12-01T18:00:00Z in UTC"},
	} {
		cmd := Command(&cli.App{Now: time.Now})
		if err := cmd.ParseFlags([]string{"--lease", given}); err != nil {
			t.Fatal(err)
		}
		a, _, _ := clitest.New(t, nil)
		err := addLease(cmd, map[string]any{})
		for _, want := range wants {
			if a.Code(err) != exit.Usage || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v", given, err)
			}
		}
	}
}

// TestWarning: a lease is launched without a warning as it is made without one.
func TestWarning(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{"none": "PT0S", "PT0S": "PT0S", "30m": "PT30M", "": nil} {
		cmd := Command(&cli.App{Now: time.Now})
		args := []string{"--lease", "2d"}
		if text != "" {
			args = append(args, "--before-end", text)
		}
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		given := map[string]any{}
		err := addLease(cmd, given)
		if lease, _ := given["lease"].(map[string]any); err != nil || lease["before_end"] != want {
			t.Errorf("--before-end %s: got %v, %v", text, given, err)
		}
	}
}

// TestVolumes: a number is a size, an id an existing volume, and pairs say the rest.
func TestVolumes(t *testing.T) {
	t.Parallel()
	const id = "0f8fad5b-d9cb-469f-a165-70867728950e"
	for _, tc := range []struct {
		args []string
		want string // the body's fields, or a part of the error
	}{
		{[]string{"--boot-volume", "20"}, `{"boot_volume":{"size_gb":20}}`},
		{[]string{"--boot-volume", id}, `{"boot_volume":{"id":"` + id + `","source":"volume"}}`},
		{
			[]string{"--boot-volume", "size=20,type=ssd,delete=false", "--volume", "5", "--volume", id},
			`{"boot_volume":{"delete_on_termination":false,"size_gb":20,"type":"ssd"},"volumes":[{"size_gb":5},` +
				`{"volume_id":"` + id + `"}]}`,
		},
		{[]string{"--volume", "source=snapshot,id=" + id}, `{"volumes":[{"id":"` + id + `","source":"snapshot"}]}`},
		{[]string{"--volume", "size=big"}, `--volume: "size=big" is wrong`},
		{[]string{"--boot-volume", "size=1,shade=red"}, `--boot-volume: "shade=red" is wrong`},
		{[]string{"--volume", "name="}, `--volume: "name=" is wrong`},
	} {
		cmd := Command(&cli.App{Now: time.Now})
		if err := cmd.ParseFlags(tc.args); err != nil {
			t.Fatal(err)
		}
		given := map[string]any{}
		err := addVolumes(cmd, given)
		got, _ := json.Marshal(given)
		if err != nil {
			got = []byte(err.Error())
		}
		if !strings.Contains(string(got), tc.want) {
			t.Errorf("%q gives %s, not %s", tc.args, got, tc.want)
		}
	}
}

// TestLaunches: servers that are alike share a line, whatever their count.
func TestLaunches(t *testing.T) {
	t.Parallel()
	image := "i"
	all := []api.LaunchResolved{{Name: "db", FlavorID: "1"}}
	for n := range 100 {
		all = append(all, api.LaunchResolved{Name: fmt.Sprintf("web-%d", n+1), FlavorID: "2", ImageID: &image})
	}
	all = append(all, api.LaunchResolved{Name: "a", FlavorID: "1"}, api.LaunchResolved{Name: "b", FlavorID: "1"})
	report := api.LaunchReport{
		Ok: true, Resolved: &all, Unchecked: []api.LaunchUnchecked{{Field: "quota", Detail: "it is not shown"}},
	}
	const want = `ok  would launch db with flavor 1
ok  would launch 100 servers, web-1 to web-100, with flavor 2, image i
ok  would launch a and b with flavor 1
unchecked  quota: it is not shown
`
	if got := reportText(report, false); got != want {
		t.Errorf("got %s", got)
	}
}
