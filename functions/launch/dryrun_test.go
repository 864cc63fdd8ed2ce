package launch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestDryRun(t *testing.T) {
	t.Parallel()
	f := testkit.Sandbox(t)
	p, app, database := start(t)
	p.SetQuota(t, 2)
	for name, tc := range map[string]struct {
		changes object
		fields  []string
	}{
		"all is well":       {nil, nil},
		"a community image": {object{"image": f.CommunityID}, nil},
		"many problems": {object{
			"image": f.RetiredID, "count": 3, "key_name": "nope", "security_groups": []string{"default", "nope"},
			"availability_zone": "nope",
		}, []string{"availability_zone", "count", "image", "key_name", "security_groups[1]"}},
		"an unknown name": {object{"flavor": "nope"}, []string{"flavor"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got launchReport
			a := app.Post(t, "/v1/launch?dry_run=true", body(t, tc.changes))
			a.JSON(t, &got)
			var fields []string
			for _, p := range got.Problems {
				fields = append(fields, p.Field)
			}
			slices.Sort(fields)
			if a.Status != 200 || got.OK != (len(tc.fields) == 0) || !slices.Equal(fields, tc.fields) {
				t.Errorf("got %d %s, want problems with %v", a.Status, a.Body, tc.fields)
			}
		})
	}
	if n := len(p.Servers(t)) + testkit.Scalar[int](t, testkit.Pool(t, database),
		"select count(*)::int from orders"); n != 0 {
		t.Errorf("a dry run left %d servers and orders", n)
	}
}

// TestLaunchWithoutNetworks uses the project's only network, and rejects the request when there are several.
func TestLaunchWithoutNetworks(t *testing.T) {
	t.Parallel()
	_, app, _ := start(t) // a project that has only the shared network
	a := app.Post(t, "/v1/launch?dry_run=true", body(t, object{"networks": nil}))
	if !strings.Contains(string(a.Body), `"ok":true`) {
		t.Errorf("one network: got %d %s", a.Status, a.Body)
	}
	a = app.As(testkit.Token(t, "demo")).Post(t, "/v1/launch", body(t, object{"networks": nil}))
	if a.Status != 400 || !testkit.Names(t, a, "networks") {
		t.Errorf("several networks: got %d %s", a.Status, a.Body)
	}
}

// TestLongDryRunAddsUpServers adds up what different servers need, and reports what the token cannot read.
func TestLongDryRunAddsUpServers(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	huge := p.TooLargeFlavor(t)
	network := "small-" + p.ID
	testkit.OpenStack(t, "admin", "network", "create", "--project", p.ID, network)
	t.Cleanup(func() { testkit.OpenStack(t, "admin", "network", "delete", network) })
	testkit.OpenStack(t, "admin", "subnet", "create", "--project", p.ID, "--network", network, "--subnet-range",
		"10.99.0.0/29", network)
	p.SetQuota(t, 3)
	six := []object{{"flavor": huge}, {}, {}, {}, {}, {}}
	request := body(t, object{"networks": []string{network}, "instances": six})
	fields := func(token string) (problems, unchecked []string) {
		var got launchReport
		a := app.As(token).Post(t, "/v1/launch?dry_run=true", request)
		a.JSON(t, &got)
		for _, x := range got.Problems {
			problems = append(problems, x.Field)
		}
		for _, x := range got.Unchecked {
			unchecked = append(unchecked, x.Field)
		}
		slices.Sort(problems)
		slices.Sort(unchecked)
		t.Logf("%s", a.Body)
		return problems, unchecked
	}
	problems, unchecked := fields(p.Token(t))
	if fmt.Sprint(problems, unchecked) != "[instances] [flavor instances[0].flavor networks[0]]" {
		t.Errorf("a member gets %v, unchecked %v", problems, unchecked)
	}
	p.Grant(t, p.UserID, "admin")
	problems, unchecked = fields(p.Token(t))
	if fmt.Sprint(problems, unchecked) != "[instances instances[0].flavor networks[0]] []" {
		t.Errorf("an admin gets %v, unchecked %v", problems, unchecked)
	}
}
