package pollinstances

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongOrderedPartsAfterCrash: the replica that took an order with a volume and a floating IP is killed as soon as
// Nova has accepted the server. Both are as ordered in the end; and once the owner has deleted the server in Nova, the
// volume is left, and the floating IP is not, unless it was attached elsewhere meanwhile.
func TestLongOrderedPartsAfterCrash(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t), network: "inside"}
	w.Grant(t, testkit.Trustee(t), "member")
	w.RoutedNetwork(t, "inside", "10.51.0.0/24")
	t.Cleanup(func() { w.DeleteVolumes(t) })
	w.abandon(t, 2, `"floating_ip":true,"volumes":[{"size_gb":1,"name":"left-data"}]`)
	for _, id := range w.servers {
		w.Await(t, id, "ACTIVE")
	}
	poller := w.poller(t, nil, 90*time.Second)
	testkit.Eventually(t, 3*time.Minute, "the order is done", func() bool { // each event takes a step of it
		tick(t, poller, 204)
		return testkit.Scalar[string](t, testkit.Connect(t, w.database), "select status from orders") == "done"
	})
	all := w.FloatingIPs(t)
	if len(all) != 2 {
		t.Fatalf("the project has the floating IPs %+v", all)
	}
	moved := -1
	for n, f := range all {
		if f.Description == domain.FloatingIPMark(uuid.MustParse(w.instances[1])) {
			moved = n
		}
	}
	if moved < 0 {
		t.Fatalf("none has the mark of %s: %+v", w.instances[1], all)
	}
	other := w.BootOn(t, "other", w.NetworkID(t, "inside"))
	if _, _, err := w.Session(t).EnsureFloatingIP(t.Context(), other, domain.FloatingIPAttach{
		ID: all[moved].ID, Moves: true,
	}); err != nil {
		t.Fatal(err)
	}
	for _, id := range w.servers {
		w.Delete(t, id)
	}
	testkit.Eventually(t, 3*time.Minute, "only what was moved is left", func() bool {
		tick(t, poller, 204)
		left := w.FloatingIPs(t)
		return len(left) == 1 && left[0].ID == all[moved].ID && left[0].PortID != ""
	})
	volumes, err := w.Session(t).Volumes(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, v := range volumes {
		names = append(names, v.Name+" "+v.Status)
	}
	if !slices.Equal(names, []string{"left-data available", "left-data available"}) {
		t.Errorf("of the volumes are left %v", names)
	}
}

// releaser is a session in which Neutron hangs in one project and refuses in another.
type releaser struct {
	session
	project string
	calls   *sync.Map
}

func (r releaser) In(_ context.Context, projectID string) (session, error) {
	return releaser{project: projectID, calls: r.calls}, nil
}

func (r releaser) ReleaseFloatingIPs(ctx context.Context, serverID, mark string) error {
	r.calls.Store(r.project+"/"+serverID, mark)
	switch r.project {
	case "hangs":
		<-ctx.Done()
		return apperr.Wrap(apperr.Timeout, ctx.Err(), "no answer")
	case "refuses":
		return apperr.New(apperr.Forbidden, "no")
	}
	return nil
}

// TestReleasesAreApart: a project that hangs takes one call of an event, and one that refuses is given up after a day.
// No other waits for them. The fake shows a Neutron that is not there for one project only.
func TestReleasesAreApart(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	conn := testkit.Connect(t, url)
	const insert = `
insert into instances (project_id, id, position, name, state, origin, server_id, updated_at, floating_ip_release_at)
select $1, gen_random_uuid(), 0, 'x', 'deleted', 'launched', $1 || n, now() - $2::interval, now()
from generate_series(1, 3) n`
	for project, ago := range map[string]time.Duration{"hangs": time.Minute, "refuses": 25 * time.Hour, "is well": 0} {
		if _, err := conn.Exec(t.Context(), insert, project, ago); err != nil {
			t.Fatal(err)
		}
	}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	var calls sync.Map
	s := &service{
		polls: postgres.Polls{DB: db},
		cloud: newSessions(func(context.Context) (session, error) { return releaser{calls: &calls}, nil }),
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // the event's
	defer cancel()
	_ = s.releaseFloatingIPs(ctx)
	count := 0
	calls.Range(func(any, any) bool { count++; return true })
	left := map[string]int{}
	for _, project := range []string{"hangs", "refuses", "is well"} {
		left[project] = testkit.Scalar[int](t, conn, "select count(floating_ip_release_at)::int from instances "+
			"where project_id = $1", project)
	}
	if count != 7 || left["hangs"] != 3 || left["refuses"] != 0 || left["is well"] != 0 {
		t.Errorf("%d calls, left are %v", count, left)
	}
}
