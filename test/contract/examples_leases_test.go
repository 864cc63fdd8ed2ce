package contract_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const exampleLease = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55"

var _ = addNoun(noun{
	example: exampleLease,
	row: `
insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end, connection_id)
values ('$project', '$id', 'default', '$user', 'x', 'error', now(), now() + interval '2 hours', 'shelve', '$connection')`,
	texts: map[string]string{"changeLease name": inPostgres, "createLease name": inPostgres},
	story: (*story).leaseStory,
})

// soonest replaces the start of examples, which passes some day.
var soonest = map[string]any{"start": "now"}

// leaseStory is the life of leases of a host and of an instance. Until its end run-leases does not see the leases, nor
// that Nova does not have the host.
func (s *story) leaseStory(t *testing.T) {
	s.ok(t, "createLease", 422, variant{example: "hosts"})
	s.ok(t, "findFreeHosts", 422, variant{query: []string{"duration"}})
	s.exec(t, `insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb, traits)
		values ('compute-7', 'nova', 'reservable', 64, 65536, 1000, '{HW_CPU_X86_AVX2}')`)
	s.exec(t, `create function undue() returns trigger language plpgsql as 'begin new.due_at := null; return new; end'`)
	s.exec(t, "create trigger undue before insert or update on leases for each row execute function undue()")
	s.exec(t, `create function kept() returns trigger language plpgsql as 'begin return null; end'`)
	s.exec(t, "create trigger kept before update on nodes for each row execute function kept()")
	instance := uuid.Must(uuid.NewV7())
	s.exec(t, `insert into instances (project_id, id, name, server_id, state, origin, spec, seq, position)
		values ($1, $2, 'vm', $3, 'active', 'connected', '{}', 1, 0)`, s.project.ID, instance, uuid.NewString())
	s.is(exampleInstance, instance.String())

	s.ok(t, "createLease", 200, variant{example: "hosts", query: []string{"dry_run=true"}})
	s.is(exampleLease, s.id(t, "createLease", 201, variant{example: "hosts"}))
	s.ok(t, "createLease", 409, variant{example: "hosts"})
	s.ok(t, "findFreeHosts", 200, variant{query: []string{
		"hosts=1", "vcpus", "ram_mb", "disk_gb", "duration", "zone", "traits", "capabilities", "limit=3",
	}})
	s.project.Grant(t, s.project.UserID, "admin")
	admin := s.client.As(s.project.Token(t))
	s.ok(t, "listAllocations", 200, variant{client: admin})
	s.ok(t, "listLeases", 200, variant{query: []string{"limit=1", "name=workshop", "type"}})
	s.ok(t, "getLease", 200, variant{})
	s.ok(t, "changeLease", 412, variant{example: "rename"})
	anyVersion := []string{"If-Match", "*"}
	s.ok(t, "changeLease", 200, variant{example: "rename", header: anyVersion})
	later := map[string]any{"start": time.Now().AddDate(1, 0, 0).UTC()}
	s.ok(t, "createLease", 201, variant{example: "hosts", set: later})
	s.exec(t, "drop trigger kept on nodes")
	s.exec(t, "update nodes set vcpus = 0") // and its only host is another's then
	s.ok(t, "changeLease", 422, variant{example: "extend", header: anyVersion, set: later})
	s.ok(t, "retryLease", 409, variant{})
	s.ok(t, "deleteLease", 200, variant{})
	s.ok(t, "releaseLease", 200, variant{client: admin})
	s.ok(t, "changeLease", 409, variant{example: "rename", header: anyVersion})

	s.is(exampleLease, s.id(t, "createLease", 201, variant{example: "instance", set: soonest}))
	s.exec(t, "update leases set status = 'error' where status = 'pending'")
	s.ok(t, "retryLease", 202, variant{})
	s.exec(t, "drop trigger undue on leases")
	s.exec(t, `update leases set status = 'active', starts_at = now() - interval '1 hour', start_result = 'done',
		started_at = now(), ends_at = now() + interval '50 minutes', before_end = '55 minutes', due_at = now()
		where status = 'starting'`)
	testkit.Eventually(t, 2*time.Minute, "a lease warns before its end", func() bool {
		s.ok(t, "runLeases", 204, variant{})
		return testkit.Scalar[bool](t, s.conn, "select exists (select from events where type = $1)",
			domain.LeaseWarningEvent)
	})
	s.ok(t, "deleteLease", 409, variant{query: []string{"on_end=delete"}})
	s.ok(t, "deleteLease", 202, variant{})
	s.ok(t, "releaseLease", 202, variant{client: admin})
}

// strayLeases stores a pending lease and one in error, both with a connection, and says what stands for that of the
// examples of an operation.
func strayLeases(t *testing.T, database string, project *testkit.Project) func(operation string) *strings.Replacer {
	t.Helper()
	pending, failed := uuid.NewString(), uuid.NewString()
	if _, err := testkit.Pool(t, database).Exec(t.Context(), `
with l as (insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end,
                               connection_id)
    values ($1, $2, '', $4, 'x', 'pending', now(), now() + interval '2 hours', 'shelve', gen_random_uuid()),
           ($1, $3, '', $4, 'x', 'error', now(), now() + interval '2 hours', 'shelve', gen_random_uuid())
    returning project_id, id)
insert into reservations (project_id, id, lease_id, position, type, instance_id)
select project_id, gen_random_uuid(), id, 0, 'instance', gen_random_uuid() from l`,
		project.ID, pending, failed, project.UserID); err != nil {
		t.Fatal(err)
	}
	return func(operation string) *strings.Replacer {
		if operation == "retryLease" {
			return strings.NewReplacer(exampleLease, failed)
		}
		return strings.NewReplacer(exampleLease, pending)
	}
}
