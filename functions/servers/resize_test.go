package servers

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// flavorsBySize are two flavors with different memory, the smaller one that of the project's test servers.
func flavorsBySize(t *testing.T, p *testkit.Project) (small, large domain.Flavor) {
	t.Helper()
	all, err := p.Session(t).Flavors(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	facts := testkit.Sandbox(t)
	small = all[slices.IndexFunc(all, func(f domain.Flavor) bool { return f.ID == facts.FlavorID })]
	n := slices.IndexFunc(all, func(f domain.Flavor) bool {
		return f.Public && f.RAMMB > small.RAMMB && f.DiskGB >= small.DiskGB
	})
	if n < 0 {
		t.Fatal("the sandbox has no larger flavor")
	}
	return small, all[n]
}

// request sends the body of an action.
func request(t *testing.T, app *testkit.Client, id, body string) (out actionAnswer) {
	t.Helper()
	a := app.Post(t, "/v1/servers/"+id+"/actions", body)
	a.JSON(t, &out)
	out.status = a.Status
	return out
}

// TestLongResize of a tracked server: reverted, and then confirmed. Nova does each once, also when the result of the
// request is lost.
func TestLongResize(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "grows", 1)[0].ID
	small, large := flavorsBySize(t, p)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	id := track(t, conn, p, server, domain.InstanceActive)
	_, err := conn.Exec(t.Context(), `update instances set spec = jsonb_build_object('flavor_id', $1::text,
'flavor_name', $2::text, 'vcpus', $3::int, 'ram_mb', $4::int) where id = $5`, small.ID, small.Name, small.VCPUs,
		small.RAMMB, id)
	if err != nil {
		t.Fatal(err)
	}
	shown := func() (s domain.Server) {
		t.Helper()
		app.Get(t, "/v1/servers/"+id).JSON(t, &s)
		return s
	}
	resize := func() string {
		return fmt.Sprintf(`{"id":%q,"action":"resize","flavor":%q}`, uuid.New(), large.Name)
	}

	same := request(t, app, id, fmt.Sprintf(`{"action":"resize","flavor":%q}`, small.ID))
	if same.status != 400 || len(same.Errors) != 1 || same.Errors[0].Field != "flavor" {
		t.Errorf("to its own flavor: %+v", same)
	}
	for _, action := range []string{"confirm_resize", "revert_resize"} {
		if a := sendAction(t, app, id, action); !a.isRejected(domain.InstanceActive) {
			t.Errorf("%s without a resize: %+v", action, a)
		}
	}
	body := resize()
	if a := request(t, app, id, body); !a.isAccepted(domain.InstanceResizing) {
		t.Fatalf("resize: %+v", a)
	}
	p.Await(t, server, "VERIFY_RESIZE")
	loseResults(t, conn)
	if a := request(t, app, id, body); a.status != 200 || !a.Changed || a.State != domain.InstanceResizing {
		t.Errorf("the same again when its result is lost: %+v", a)
	}
	if s := shown(); s.Flavor.Name != large.Name || s.Instance.State != domain.InstanceResizing ||
		!slices.Contains(s.AllowedActions, domain.ConfirmResize) {
		t.Errorf("a server that was resized is %+v, and allows %v", s, s.AllowedActions)
	}
	if a := request(t, app, id, resize()); !a.isRejected(domain.InstanceResizing) {
		t.Errorf("another resize: %+v", a)
	}

	if a := sendAction(t, app, id, "revert_resize"); !a.isAccepted(domain.InstanceResizing) {
		t.Errorf("revert: %+v", a)
	}
	p.Await(t, server, "ACTIVE")
	if s := shown(); s.Flavor.Name != small.Name {
		t.Errorf("reverted it has the flavor %s", s.Flavor.Name)
	}

	if a := request(t, app, id, resize()); !a.isAccepted(domain.InstanceResizing) {
		t.Fatalf("resize it again: %+v", a)
	}
	p.Await(t, server, "VERIFY_RESIZE")
	body = fmt.Sprintf(`{"id":%q,"action":"confirm_resize"}`, uuid.New())
	if a := request(t, app, id, body); !a.isAccepted(domain.InstanceResizing) {
		t.Errorf("confirm: %+v", a)
	}
	p.Await(t, server, "ACTIVE")
	loseResults(t, conn)
	if a := request(t, app, id, body); a.status != 200 || !a.Changed {
		t.Errorf("the same confirm when its result is lost: %+v", a)
	}
	if s := shown(); s.Flavor.Name != large.Name || slices.Contains(s.AllowedActions, domain.ConfirmResize) {
		t.Errorf("a server whose resize was confirmed is %+v", s)
	}
	for name, want := range map[string]int{"resize": 2, "confirmResize": 1, "revertResize": 1} {
		if n := logged(t, server, name); n != want {
			t.Errorf("Nova has done %s %d times, want %d", name, n, want)
		}
	}
	// The next change stores the size, by which quotas count.
	if a := sendAction(t, app, id, "stop"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("stop: %+v", a)
	}
	if ram := testkit.Scalar[int](t, conn, "select (spec->>'ram_mb')::int from instances"); ram != large.RAMMB {
		t.Errorf("stored are %d MiB, want %d", ram, large.RAMMB)
	}
}

// TestLongRebuild recreates the disk once, also when the result of the request is lost.
func TestLongRebuild(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "new-disk", 1)[0].ID
	facts := testkit.Sandbox(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	id := track(t, conn, p, server, domain.InstanceActive)
	body := func(image string) string {
		return fmt.Sprintf(`{"id":%q,"action":"rebuild","confirm_rebuild":true%s}`, uuid.New(), image)
	}
	for image, want := range map[string]int{facts.RetiredID: 400, "no such image": 400} {
		a := request(t, app, id, body(fmt.Sprintf(`,"image":%q`, image)))
		if a.status != want || len(a.Errors) != 1 || a.Errors[0].Field != "image" {
			t.Errorf("%s: %+v", image, a)
		}
	}
	one := body("")
	if a := request(t, app, id, one); !a.isAccepted(domain.InstanceUpdating) {
		t.Fatalf("rebuild: %+v", a)
	}
	loseResults(t, conn)
	if a := request(t, app, id, one); a.status != 200 || !a.Changed {
		t.Errorf("the same when its result is lost: %+v", a)
	}
	p.Await(t, server, "ACTIVE")
	p.Quiet(t, server)
	if a := request(t, app, id, body(fmt.Sprintf(`,"image":%q`, facts.Image))); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("rebuild by name: %+v", a)
	}
	p.Await(t, server, "ACTIVE")
	if n := logged(t, server, "rebuild"); n != 2 {
		t.Errorf("Nova has rebuilt it %d times", n)
	}
}

// TestLongRescue of a server: Nova's password is in the first answer, and in nothing that is stored.
func TestLongRescue(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "rescued", 1)[0].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	id := track(t, conn, p, server, domain.InstanceActive)
	body := fmt.Sprintf(`{"id":%q,"action":"rescue","image":%q}`, uuid.New(), testkit.Sandbox(t).Image)
	first := request(t, app, id, body)
	if !first.isAccepted(domain.InstanceUpdating) || first.Password == "" {
		t.Fatalf("rescue: %+v", first)
	}
	if a := request(t, app, id, body); a.status != 200 || !a.Changed || a.Password != "" {
		t.Errorf("the same again: %+v", a)
	}
	stored := testkit.Scalar[string](t, conn, "select coalesce(string_agg(result::text, ''), '') from keyed_actions")
	if strings.Contains(stored, first.Password) {
		t.Error("the password is stored")
	}
	p.Await(t, server, "RESCUE")
	if a := sendAction(t, app, id, "rescue"); !a.isIdle(domain.InstanceRescued) {
		t.Errorf("rescue while rescued: %+v", a)
	}
	if a := sendAction(t, app, id, "stop"); !a.isRejected(domain.InstanceRescued) {
		t.Errorf("stop while rescued: %+v", a)
	}
	if a := sendAction(t, app, id, "unrescue"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("unrescue: %+v", a)
	}
	p.Await(t, server, "ACTIVE")
	if a := sendAction(t, app, id, "unrescue"); !a.isIdle(domain.InstanceActive) {
		t.Errorf("unrescue while active: %+v", a)
	}
}
