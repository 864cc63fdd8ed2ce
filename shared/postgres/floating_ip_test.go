package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestClaimReleases: of deleted instances that an order made floating IPs for, each project gets its share, no two
// replicas get the same, and what is not finished is due again later, after ever longer pauses.
func TestClaimReleases(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	db, conn := open(t, url), testkit.Connect(t, url)
	store, polls := postgres.Orders{DB: db}, postgres.Polls{DB: db}
	for project, n := range map[string]int{"p1": 5, "p2": 1, "none": 1, "of its own": 1, "not served": 1} {
		o := newOrder(n)
		o.ProjectID = project
		for k := range o.Instances {
			o.Instances[k].ProjectID, o.Instances[k].Spec.FloatingIP = project, &domain.ServerFloatingIP{}
			switch project {
			case "none":
				o.Instances[k].Spec.FloatingIP = nil
			case "of its own":
				o.Instances[k].Spec.FloatingIP.Address = "203.0.113.7"
			}
		}
		place(t, store, o, long)
	}
	exec(t, conn, "insert into unserved_projects (project_id, domain_id) values ('not served', '')")
	claim := func() map[string]int {
		t.Helper()
		count := map[string]int{}
		for _, i := range must(polls.ClaimReleases(t.Context(), 2, 10))(t) {
			count[i.ProjectID]++
		}
		return count
	}
	if got := claim(); len(got) != 0 {
		t.Errorf("while the servers run, got %v", got)
	}
	exec(t, conn, "update instances set state = 'deleted', server_id = id::text, "+
		"updated_at = now() - interval '10 minutes'")
	for n, want := range []int{2, 2, 1, 0} {
		if got := claim(); got["p1"] != want || got["p2"] != max(0, 1-n) || len(got) > 2 {
			t.Errorf("claim %d got %v, want %d of p1", n, got, want)
		}
	}
	next := testkit.Scalar[time.Duration](t, conn, "select max(floating_ip_release_at) - now() from instances")
	if next < 9*time.Minute || next > 11*time.Minute {
		t.Errorf("what has failed for 10 minutes is due again in %s", next)
	}
	exec(t, conn, "update instances set floating_ip_release_at = now() where project_id in ('p1', 'p2')")
	last := must(polls.ClaimReleases(t.Context(), 1, 1))(t)
	if len(last) != 1 {
		t.Fatalf("got %v", last)
	}
	noError(t, polls.FinishRelease(t.Context(), last[0].ProjectID, last[0].ID))
	exec(t, conn, "update instances set floating_ip_release_at = now() where floating_ip_release_at is not null; "+
		"update instances set disconnected_at = now() where project_id = 'p1'")
	if got := claim(); got["p1"] != 0 || got["p2"] > 1 {
		t.Errorf("after the others were disconnected, got %v", got)
	}
}

// TestRecordParts: only the claim's holder writes a floating IP and security groups, and the order shows them.
func TestRecordParts(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(1)
	claim := place(t, store, o, long)
	made := domain.InstanceFloatingIP{ID: "f", Address: "203.0.113.7"}
	noError(t, store.RecordFloatingIP(t.Context(), o, claim, o.Instances[0].ID, made))
	if got := get(t, store, o).Instances[0].FloatingIP; got == nil || *got != made {
		t.Errorf("got %+v", got)
	}
	refused := domain.PortGroups{Problem: &domain.Problem{Code: "not_found", Detail: "there is no such group"}}
	noError(t, store.RecordGroups(t.Context(), o, claim, o.Instances[0].ID, refused))
	if got := get(t, store, o).Instances[0].Failure(); got == nil || *got != *refused.Problem {
		t.Errorf("got %+v", got)
	}
	noError(t, store.Release(t.Context(), o, claim))
	wantError(t, "groups after the claim's end", store.RecordGroups(t.Context(), o, claim, o.Instances[0].ID, refused),
		domain.ErrFenced)
	wantError(t, "after the claim's end", store.RecordFloatingIP(t.Context(), o, claim, o.Instances[0].ID, made),
		domain.ErrFenced)
}
