package postgres_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestReuseComparesImages, by id and by name. Where the name is not known the image is compared later, and what is
// known goes first.
func TestReuseComparesImages(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	const other = "0f8fad5b-d9cb-469f-a165-70867728950e"
	for name, tc := range map[string]struct {
		id, ref string // of the idle one; "" = it was stored before names were
		asks    string
		taken   bool
	}{
		"the name":             {debian, "debian", "debian", true},
		"another name":         {debian, "debian", "ubuntu", false},
		"the id":               {debian, "debian", debian, true},
		"another id":           {debian, "debian", other, false},
		"by name, id known":    {debian, debian, "debian", true},
		"by name, not stored":  {debian, "", "debian", true},
		"by id, not stored":    {debian, "", other, false},
		"an id that is a name": {debian, other, other, true},
	} {
		c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
		idle := l.idle(t, c, fits, map[string]string{"pool": "a"})
		l.exec(t, `update instances set spec = jsonb_strip_nulls(spec || jsonb_build_object('image_id', $2::text,
  'image', nullif($3::text, ''))) where id = $1`, idle, tc.id, tc.ref)
		o := reusing(c, 1)
		o.Instances[0].Spec.ImageRef = tc.asks
		if _, err := l.Place(t.Context(), o, 0); err != nil {
			t.Fatal(err)
		}
		if taken := get(t, l.Orders, o).Instances[0].ID == idle; taken != tc.taken {
			t.Errorf("%s: taken is %t", name, taken)
		}
	}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	unknown, known := l.idle(t, c, fits, map[string]string{"pool": "a"}), l.idle(t, c, big, map[string]string{"pool": "a"})
	l.exec(t, "update instances set spec = spec - 'image' where id = $1", unknown)
	o := reusing(c, 1)
	if _, err := l.Place(t.Context(), o, 0); err != nil {
		t.Fatal(err)
	}
	if got := get(t, l.Orders, o).Instances[0].ID; got != known {
		t.Error("taken is the one whose image is not known")
	}
}

// TestMarkReusable: the owner marks what he has connected, and takes a mark back, from what was launched too. Who
// connects a server anew, or adopts it, gets it without the mark.
func TestMarkReusable(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	instances := postgres.Instances{DB: l.DB}
	c, other := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	own := domain.Instance{
		ID: uuid.New(), ProjectID: "p1", ServerID: uuid.NewString(), State: domain.InstanceStopped,
		ConnectionID: c.ID,
	}
	own.Spec = domain.LaunchSpec{ImageID: debian, Metadata: map[string]string{"pool": "a"}}
	own.Spec.Sized(fits)
	if _, _, err := instances.Connect(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	takes := func(what string, c domain.Connection, id uuid.UUID, want bool) {
		t.Helper()
		o := reusing(c, 1)
		if _, err := l.Place(t.Context(), o, 0); err != nil {
			t.Fatal(err)
		}
		if got := get(t, l.Orders, o).Instances[0].ID == id; got != want {
			t.Errorf("%s: taken is %t", what, got)
		}
		l.exec(t, "update orders set status = 'done'")
	}
	mark := func(id string, reusable bool) {
		t.Helper()
		if _, found, err := instances.MarkReusable(t.Context(), "p1", id, reusable); !found || err != nil {
			t.Fatalf("%t %v", found, err)
		}
	}
	takes("connected", c, own.ID, false)
	mark(own.ServerID, true)
	takes("marked", c, own.ID, true)
	mark(own.ID.String(), false)
	takes("taken back", c, own.ID, false)
	launched := l.idle(t, c, fits, map[string]string{"pool": "a"})
	mark(launched.String(), false)
	takes("launched, and taken back", c, launched, false)
	mark(launched.String(), true)
	takes("launched, and marked again", c, launched, true)
	if done, err := instances.Disconnect(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: c.ID},
		launched); !done || err != nil {
		t.Fatal(err)
	}
	again := get(t, l.Orders, domain.Order{ID: testkit.Scalar[uuid.UUID](t, l.conn,
		"select order_id from instances where id = $1", launched), ProjectID: "p1"}).Instances[0]
	again.ConnectionID = other.ID
	if _, _, err := instances.Connect(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	takes("adopted by another connection", other, launched, false)
	for name, id := range map[string]string{"unknown": uuid.NewString(), "another project's": own.ServerID} {
		project := "p1"
		if name != "unknown" {
			project = "p2"
		}
		if _, found, err := instances.MarkReusable(t.Context(), project, id, true); found || err != nil {
			t.Errorf("%s: %t %v", name, found, err)
		}
	}
}

// TestReplaceReused gives the place of an idle one to another idle one, else to a new one, and to neither beyond the
// quota.
func TestReplaceReused(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	two := 2
	c := l.storeConnection(t, domain.ConnectionQuota{Instances: &two}, nil)
	first := l.idle(t, c, fits, map[string]string{"pool": "a"})
	o := reusing(c, 1)
	if _, err := l.Place(t.Context(), o, 0); err != nil {
		t.Fatal(err)
	}
	stored := get(t, l.Orders, o)
	if stored.Instances[0].ID != first || !stored.IsReused(stored.Instances[0]) {
		t.Fatalf("it has %+v", stored.Instances[0])
	}
	claim, err := l.Claim(t.Context(), stored, long)
	if err != nil || !claim.Acquired {
		t.Fatal(err)
	}
	replace := func(what, has string, problem *domain.Problem) domain.Instance {
		t.Helper()
		l.exec(t, `update instances set server_id = gen_random_uuid()::text, state = 'deleted' where order_id = $1
  and server_id is null`, o.ID)
		before := get(t, l.Orders, o)
		wanted := o.Instances[0]
		wanted.ID, wanted.Spec.ImageID, wanted.Problem = uuid.New(), debian, problem
		if err := l.ReplaceReused(t.Context(), before, claim, 0, has, wanted); err != nil {
			t.Fatal(err)
		}
		if err := l.ReplaceReused(t.Context(), before, claim, 0, has, wanted); err != nil { // as after a lost answer
			t.Fatal(err)
		}
		after := get(t, l.Orders, o)
		if len(after.Instances) != 1 || after.Instances[0].ID == before.Instances[0].ID {
			t.Fatalf("%s: it has %+v", what, after.Instances)
		}
		return after.Instances[0]
	}
	second := replace("another image", "0f8fad5b-d9cb-469f-a165-70867728950e", nil)
	if second.State != domain.InstanceRequested || second.Name != o.Instances[0].Name ||
		get(t, l.Orders, o).IsReused(second) {
		t.Errorf("in its place is %+v", second)
	}
	if got := testkit.Scalar[string](t, l.conn,
		`select concat(order_id, spec->>'image_id', spec->>'image') from instances where id = $1`, first); got != "0f8fad5b-d9cb-469f-a165-70867728950e" {
		t.Errorf("of the one that is given back is known %q", got)
	}
	if used := l.used(t, c); used.Instances != 2 {
		t.Errorf("%d count for the quota", used.Instances)
	}
	if third := replace("it is deleted", "", nil); third.State != domain.InstanceRequested {
		t.Errorf("what was new takes no more: %+v", third)
	}
	l.exec(t, `update connections set quota = '{"instances": 1}' where id = $1`, c.ID)
	if fourth := replace("no room", "",
		nil); fourth.State != domain.InstanceError || fourth.Problem == nil || fourth.Problem.Code != "quota_exceeded" {
		t.Errorf("beyond the quota: %+v", fourth)
	}
	if fifth := replace("refused", "", &domain.Problem{
		Code:   "invalid",
		Detail: "no image",
	}); fifth.Problem == nil || fifth.Problem.Detail != "no image" {
		t.Errorf("what cannot be had: %+v", fifth)
	}
	l.exec(t, "update orders set claim_id = gen_random_uuid()")
	if err := l.ReplaceReused(t.Context(), get(t, l.Orders, o), claim, 0, "", o.Instances[0]); !errors.Is(err,
		domain.ErrFenced) {
		t.Errorf("without the claim: %v", err)
	}
}
