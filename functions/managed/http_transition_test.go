package managed

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestVolumeKeepsItsData: a volume grows, and what would lose its data is refused, by a rollback too.
func TestVolumeKeepsItsData(t *testing.T) {
	t.Parallel()
	before := domain.Managed{Kind: domain.KindVolume, Spec: []byte(`{"size_gb": 2, "image": "a", "zone": "z"}`)}
	scheduled := domain.Managed{
		Kind: domain.KindVolume, Spec: []byte(`{"size_gb": 2}`), Schedule: domain.ScheduleRule{Zone: "z"},
	}
	for _, row := range []struct {
		before     domain.Managed
		spec, zone string
		want       string
	}{
		{before, `{"size_gb": 3, "image": "a", "zone": "z"}`, "", ""},
		{before, `{"size_gb": 1, "image": "a", "zone": "z"}`, "", "spec.size_gb"},
		{before, `{"size_gb": 2, "image": "b", "zone": "z"}`, "", "spec.image"},
		{before, `{"size_gb": 2, "image": "a"}`, "", "spec.zone"},
		{before, `{"size_gb": 2, "image": "a"}`, "z", ""},
		{before, `{"size_gb": 2, "image": "a", "zone": "z"}`, "y", ""},
		{scheduled, `{"size_gb": 2}`, "z", ""},
		{scheduled, `{"size_gb": 2}`, "y", "schedule.zone"},
		{scheduled, `{"size_gb": 2}`, "", "schedule.zone"},
		{scheduled, `{"size_gb": 2, "zone": "y"}`, "z", "spec.zone"},
	} {
		err := checkTransition(row.before, []byte(row.spec), domain.ScheduleRule{Zone: row.zone})
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want+":") {
			t.Errorf("%s in %q: %v, want %s", row.spec, row.zone, err, row.want)
		}
	}
}

// TestResourceStays: a resource keeps its region, kind, name and connection. A field that would change one of them is
// refused by its name, and nothing is stored.
func TestResourceStays(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	body := func(more string) string { return fmt.Sprintf(`{"spec": %s%s}`, machine, more) }
	in := func(region string) string { return body(fmt.Sprintf(`, "schedule": {"region": %q}`, region)) }
	declared(t, declare(t, f.Client, machines+"a", body("")), http.StatusCreated)
	declared(t, declare(t, f.Client, machines+"a", in("RegionOne")), http.StatusOK) // it was there before
	m := declared(t, declare(t, f.Client, machines+"a", body("")), http.StatusOK)
	for _, sql := range []string{
		`update managed set schedule = '{"region": "elsewhere"}' where name = 'a'`,
		fmt.Sprintf(`update managed_revisions set schedule = '{"region": "elsewhere"}' where number = %d`, m.Revision),
	} {
		if _, err := f.conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, a := range map[string]testkit.Answer{
		"to the own region":         declare(t, f.Client, machines+"a", body("")),
		"to the own region by name": declare(t, f.Client, machines+"a", in("RegionOne")),
		"in a dry run":              declare(t, f.Client, machines+"a?dry_run=true", body("")),
		"by a rollback":             f.Post(t, machines+"a/rollback", `{"revision": 1}`),
	} {
		refused(t, a, 400, "invalid", "schedule.region")
		if text := string(a.Body); !strings.Contains(text, `must stay \"elsewhere\"`) ||
			!strings.Contains(text, "declare another one there, and delete this one") {
			t.Errorf("%s: %s", name, text)
		}
	}
	for _, field := range []string{"kind", "name", "connection_id", "provider", "project_id", "user_id", "revision"} {
		refused(t, declare(t, f.Client, machines+"b", body(fmt.Sprintf(`, %q: "x"`, field))), 400, "invalid", field)
	}
	var shown Managed
	if f.Get(t, machines+"a").JSON(t, &shown); shown.Revision != m.Revision || shown.Schedule.Region != "elsewhere" {
		t.Errorf("it is %+v", shown)
	}
	refused(t, f.Get(t, machines+"b"), 404, "not_found", "")
}

// TestScheduleOfAKind: a rule that has no meaning for a kind is refused, and not ignored.
func TestScheduleOfAKind(t *testing.T) {
	t.Parallel()
	rules := map[string]domain.ScheduleRule{
		"zone": {Zone: "z"}, "labels": {Labels: map[string]string{"a": "b"}}, "affinity": {Affinity: "spread"},
		"region": {Region: "r"},
	}
	takes := map[domain.Kind]string{
		domain.KindMachine: "region zone labels", domain.KindDeployment: "region zone labels affinity",
		domain.KindVolume: "region zone", domain.KindImage: "region", domain.KindBalancer: "region",
		domain.KindSecret: "region", domain.KindConfigmap: "region",
	}
	for kind, known := range takes {
		for name, rule := range rules {
			err := checkSchedule(kind, rule)
			isTaken := strings.Contains(known, name)
			if (err == nil) != isTaken || err != nil && !strings.Contains(err.Error(), "schedule."+name+":") {
				t.Errorf("%s of %s: %v", name, kind, err)
			}
		}
	}
}
