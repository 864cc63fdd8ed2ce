package launch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
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

// TestNamesThatNovaRejects checks that names which Nova rejects are rejected immediately, by dry run and launch alike.
func TestNamesThatNovaRejects(t *testing.T) {
	t.Parallel()
	_, app, database := start(t)
	for name, tc := range map[string]struct {
		changes object
		field   string // "" = it is taken
	}{
		"an accent and a sign":     {object{"name": "wëb ✓"}, ""},
		"a wide space inside":      {object{"name": "web\u3000server"}, ""},
		"an emoji":                 {object{"name": "web 🚀"}, "name"},
		"a zero-width space":       {object{"name": "we\u200bb"}, "name"},
		"a soft hyphen":            {object{"name": "we\u00adb"}, "name"},
		"a private character":      {object{"name": "we\ue000b"}, "name"},
		"a line separator":         {object{"name": "we\u2028b"}, "name"},
		"a space before":           {object{"name": " web"}, "name"},
		"a space after":            {object{"name": "web "}, "name"},
		"a no-break space after":   {object{"name": "web\u00a0"}, "name"},
		"only spaces":              {object{"name": "  "}, "name"},
		"an emoji of its own":      {object{"instances": []object{{"name": "🚀"}}}, "instances[0].name"},
		"an emoji, of several":     {object{"name": "🚀", "count": 2}, "name"},
		"a space around the key":   {object{"key_name": " k"}, "key_name"},
		"a space around the zone":  {object{"availability_zone": "nova "}, "availability_zone"},
		"a space around the group": {object{"security_groups": []string{" default"}}, "security_groups[0]"},
		"a metadata key with ü":    {object{"metadata": object{"schlüssel": "v"}}, "metadata.schlüssel"},
		"a metadata key with /":    {object{"metadata": object{"a/b": "v"}}, "metadata.a/b"},
		"an empty metadata key":    {object{"metadata": object{"": "v"}}, "metadata"},
		"metadata that Nova takes": {object{"metadata": object{"a-Z_0:9. x": "✓ ü"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dry := app.Post(t, "/v1/launch?dry_run=true", body(t, tc.changes))
			if tc.field == "" {
				if dry.Status != 200 || !strings.Contains(string(dry.Body), `"ok":true`) {
					t.Errorf("dry run: got %d %s", dry.Status, dry.Body)
				}
				return
			}
			for _, a := range []testkit.Answer{dry, app.Post(t, "/v1/launch", body(t, tc.changes))} {
				if a.Status != 400 || !testkit.Names(t, a, tc.field) {
					t.Errorf("got %d %s, want 400 that names %s", a.Status, a.Body, tc.field)
				}
			}
		})
	}
	if n := testkit.Scalar[int](t, testkit.Pool(t, database), "select count(*)::int from orders"); n != 0 {
		t.Errorf("%d orders were stored", n)
	}
}

// TestLongDryRunAgreesWithLaunch compares the dry run with the launch in the real cloud.
func TestLongDryRunAgreesWithLaunch(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	member, reader := p.Token(t), p.ReaderToken(t)
	for name, tc := range map[string]struct {
		token   string
		changes object
		field   string // that the dry run finds a problem with; "" = none
		launch  int
		order   domain.OrderStatus // at the end; "" = not checked
	}{
		"characters that Nova takes": {
			member,
			object{"name": "wëb\u3000✓", "metadata": object{"a-Z_0:9. x": "✓ ü"}},
			"",
			202, domain.OrderDone,
		},
		"a shared external network": {
			member, object{"networks": []string{p.ExternalNetwork(t, "10.97.1.0/24", true)}}, "", 202, domain.OrderDone,
		},
		"an external network": {
			member,
			object{"networks": []string{p.ExternalNetwork(t, "10.97.2.0/24", false)}},
			"networks[0]", 202, domain.OrderFailed,
		},
		"a flavor without a disk":      {member, object{"flavor": p.DisklessFlavor(t)}, "flavor", 403, ""},
		"a token that may only read":   {reader, nil, "X-Auth-Token", 403, ""},
		"a metadata key with umlauts":  {member, object{"metadata": object{"ü": "v"}}, "metadata.ü", 400, ""},
		"a name with a variant emoji":  {member, object{"name": "🚀"}, "name", 400, ""},
		"a name with a joiner in it":   {member, object{"name": "a\u200db"}, "name", 400, ""},
		"a name with a tab behind it":  {member, object{"name": "a\t"}, "name", 400, ""},
		"a name of spaces and nothing": {member, object{"name": "\u2003"}, "name", 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			app := app.As(tc.token)
			dry := app.Post(t, "/v1/launch?dry_run=true", body(t, tc.changes))
			isOK := strings.Contains(string(dry.Body), `"ok":true`)
			if isOK != (tc.field == "") || !isOK && !strings.Contains(string(dry.Body), fmt.Sprintf("%q", tc.field)) {
				t.Errorf("dry run: got %d %s, want a problem with %q", dry.Status, dry.Body, tc.field)
			}
			a := app.Post(t, "/v1/launch", body(t, tc.changes))
			if a.Status != tc.launch {
				t.Fatalf("launch: got %d %s, want %d", a.Status, a.Body, tc.launch)
			}
			if tc.order == "" {
				return
			}
			var order Order
			a.JSON(t, &order)
			testkit.Eventually(t, 4*time.Minute, "the order ends", func() bool {
				app.Get(t, "/v1/launch/"+order.ID.String()).JSON(t, &order)
				return order.Status != domain.OrderRunning
			})
			if order.Status != tc.order {
				t.Errorf("the order is %+v, want %s", order, tc.order)
			}
		})
	}
}
