package runleases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// crashWorld is one lease of an instance, with a stand-in for run-connections and Nova that does each action whole.
type crashWorld struct {
	db    *postgres.DB
	rows  *pgxpool.Pool
	lease uuid.UUID
}

func newCrashWorld(t *testing.T, onEnd domain.OnEnd, more ...domain.Reservation) crashWorld {
	t.Helper()
	database := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	w := crashWorld{db: db, rows: testkit.Pool(t, database), lease: uuid.Must(uuid.NewV7())}
	w.exec(t, `
insert into instances (project_id, id, name, server_id, state, raw_status, origin, spec, seq, position)
values ('p', $1, 'vm', 's', 'active', 'ACTIVE', 'connected', '{}', 1, 0)`, w.instance())
	stored, err := postgres.Leases{DB: db}.Create(t.Context(), domain.NewLease{
		Connection: &domain.Connection{
			ID: uuid.Must(uuid.NewV7()), ProjectID: "p", DomainID: "d", UserID: "u", Name: "lease", DelegationID: "t",
			Kind: domain.TrustConnection, UsableBy: []string{}, Flavors: []domain.Flavor{},
			ExpiresAt: time.Now().Add(time.Hour),
			Actions:   []domain.Permission{domain.MayStart, domain.MayStop, domain.MayDeallocate, domain.MayAttach},
		},
		Lease: domain.Lease{
			ID: w.lease, ProjectID: "p", DomainID: "d", UserID: "u", Name: "nightly", OnEnd: onEnd,
			StartsAt: time.Now().Add(time.Hour), EndsAt: time.Now().Add(2 * time.Hour), BeforeEnd: 10 * time.Minute,
			Reservations: append([]domain.Reservation{{
				ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: w.instance(),
			}}, more...),
		},
	})
	if err != nil {
		t.Fatalf("%+v: %v", stored, err)
	}
	return w
}

func (w crashWorld) instance() uuid.UUID { return uuid.NewSHA1(w.lease, nil) }

func (w crashWorld) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.rows.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// replica is a run-leases that dies where c says.
func (w crashWorld) replica(c *crasher) *service {
	s := &service{db: w.db, leases: postgres.Leases{DB: w.db}}
	s.engine = leases.Engine{
		Store: crashingStore{s.leases, c}, Actions: crashingActions{postgres.Actions{DB: w.db}, c},
		Instances: postgres.Instances{DB: w.db}, Connections: postgres.Delegations{DB: w.db},
		Nodes: postgres.Nodes{DB: w.db},
		Wake:  func(...string) {}, RetryFor: time.Minute, ClaimFor: time.Minute,
	}
	return s
}

// pass works on the lease if it is due, and reports whether the replica has died.
func (s *service) pass(t *testing.T) (died bool) {
	t.Helper()
	return s.passAt(t, 0)
}

func (s *service) passAt(t *testing.T, after time.Duration) (died bool) {
	t.Helper()
	claimed, err := s.leases.Queue().Claim(t.Context(), s.engine.ClaimFor, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		switch r := recover(); r {
		case nil:
		case any(errCrash):
			died = true
		default:
			panic(r)
		}
	}()
	for _, row := range claimed.Rows {
		now := claimed.At.Add(after)
		if err := s.engine.Run(t.Context(), claimed.Claim, row.Value, now); err != nil {
			t.Errorf("the pass: %v", err)
		}
	}
	return false
}

// act does what run-connections and Nova do for the running actions, and poll-instances reads.
func (w crashWorld) act(t *testing.T) {
	t.Helper()
	w.exec(t, `
with done as (
    update actions set status = 'done', outcome = case verb
        when 'attach_volume' then '{"volume_id": "v", "used": true}'
        when 'detach_volume' then '{"volume_id": "v", "snapshot_id": "s", "used": true}' else '{}' end::jsonb
    where status = 'running' returning instance_id, verb
)
update instances i set (state, raw_status) = (
    case d.verb when 'shelve' then 'shelved' when 'start' then 'active' when 'stop' then 'stopped'
                when 'delete' then 'deleted' else i.state end,
    case d.verb when 'shelve' then 'SHELVED_OFFLOADED' when 'start' then 'ACTIVE' when 'stop' then 'SHUTOFF'
                when 'delete' then 'DELETED' else i.raw_status end)
from done d where i.id = d.instance_id`)
}

// becomes runs replicas, and the first one dies where c says, until the lease has the status and nothing runs. It
// returns after how many rounds.
func (w crashWorld) becomes(t *testing.T, c *crasher, status, instance string) int {
	t.Helper()
	replica := w.replica(c)
	for round := 1; ; round++ {
		if replica.pass(t) {
			w.exec(t, "update leases set claimed_until = now()") // as time ends the claim
			replica = w.replica(&crasher{})
		}
		w.act(t)
		if testkit.Scalar[bool](t, w.rows, `
select l.status = $1 and i.state = $2 and not exists (select from actions where status = 'running')
from leases l, instances i`, status, instance) {
			return round
		}
		if round > 20 {
			t.Fatalf("it does not become %s: %s", status, testkit.Scalar[string](t, w.rows, `
select concat_ws(' ', l.status, l.problem, i.state, i.raw_status) from leases l, instances i`))
		}
		w.exec(t, "update leases set due_at = now() where due_at < now() + interval '10 minutes'") // pauses of its work
	}
}

// TestCrashPoints: a replica dies after each write of a lease's life, and another one continues: the lease gets where
// it has to at most two rounds later, with each action requested once, and each event written once and in order.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	const (
		prepare = "save step pending, action shelve, save pending, save pending"
		start   = "save step starting, action start, save starting, save active"
	)
	// What each end writes after the start. Anyone who adds a write adds it here, too.
	for onEnd, end := range map[domain.OnEnd]struct{ writes, actions, state string }{
		domain.OnEndShelve: {"action shelve, save ending, finish ended", "shelve start shelve", "shelved"},
		domain.OnEndStop:   {"action stop, save ending, finish ended", "shelve start stop", "stopped"},
		domain.OnEndDelete: {"action delete, save ending, finish ended", "shelve start delete", "deleted"},
		domain.OnEndSnapshotDelete: {
			"action snapshot, save ending, action delete, save ending, finish ended",
			"shelve start snapshot delete", "deleted",
		},
	} {
		before := strings.Split(prepare+", "+start+", save active, save step ending", ", ")
		writes := slices.Concat(before, strings.Split(end.writes, ", "))
		for at := range len(writes) + 1 { // 0 = no one dies
			if at > 0 && at <= len(before) && onEnd != domain.OnEndShelve {
				continue // the same for each
			}
			name := "no one dies"
			if at > 0 {
				name = fmt.Sprintf("%d after %s", at, writes[at-1])
			}
			t.Run(string(onEnd)+"/"+name, func(t *testing.T) {
				t.Parallel()
				w, c := newCrashWorld(t, onEnd), &crasher{at: at}
				rounds := w.becomes(t, c, "pending", "shelved")
				w.exec(t, "update leases set due_at = now()")
				w.replica(c).pass(t) // it sees that the instance is shelved
				w.exec(t, "update leases set starts_at = now(), due_at = now(), claimed_until = null")
				rounds += w.becomes(t, c, "active", "active")
				const soon = "ends_at = now() + interval '1 minute'"
				w.exec(t, "update leases set due_at = now(), claimed_until = null, "+soon)
				w.replica(c).pass(t) // warns
				w.exec(t, "update leases set due_at = now(), claimed_until = null, ends_at = now()")
				rounds += w.becomes(t, c, "ended", end.state)
				w.check(t, end.actions)
				if at == 0 && !slices.Equal(c.names, writes) {
					t.Errorf("it wrote\n%v, the table has\n%v", c.names, writes)
				}
				if at > len(c.names) {
					t.Errorf("it did not die: it wrote %v", c.names)
				}
				if actions := len(strings.Fields(end.actions)); rounds > actions+4 { // 2 without a crash
					t.Errorf("it took %d rounds for %d actions", rounds, actions)
				}
			})
		}
	}
}

// check checks what is left of a lease that has ended.
func (w crashWorld) check(t *testing.T, actions string) {
	t.Helper()
	for sql, want := range map[string]string{
		"select string_agg(verb, ' ' order by created_at) from actions": actions,
		`select string_agg(coalesce(data->>'status', 'before_end'), ' ' order by seq) from events
		 where subject = (select id::text from leases)`: "pending starting active before_end ending ended",
		"select string_agg(status || ' ' || (secret is null)::text, ' ') from connections": "deleted true",
		"select string_agg(status || ' ' || is_open::text, ' ') from reservations":         "ended false",
		"select coalesce(lease_id::text, 'free') from instances":                           "free",
		"select concat_ws(' ', start_result, end_result, due_at) from leases":              "done done",
	} {
		if got := testkit.Scalar[string](t, w.rows, sql); got != want {
			t.Errorf("%s: got %q, want %q", sql, got, want)
		}
	}
}

var errCrash = errors.New("the replica has died")

// crasher ends a replica right after one of its writes. A crash right before it is one after the write before.
type crasher struct {
	at       int             // the number of the write; 0 = none
	everyNew map[string]bool // not nil: after each write that is not in it, which it then is
	after    string          // the name of the write; "" = none, or it has died
	names    []string
}

func (c *crasher) wrote(name string) {
	c.names = append(c.names, name)
	isNew := c.everyNew != nil && !c.everyNew[name]
	if isNew {
		c.everyNew[name] = true
	}
	if isNew || len(c.names) == c.at || c.after == name {
		c.after = ""
		panic(errCrash)
	}
}

type crashingStore struct {
	leases.Store
	*crasher
}

func (s crashingStore) SaveStep(ctx context.Context, c domain.Claim, l *domain.Lease, d time.Duration) error {
	err := s.Store.SaveStep(ctx, c, l, d)
	s.wrote("save step " + string(l.Status))
	return err
}

func (s crashingStore) Save(ctx context.Context, c domain.Claim, l *domain.Lease) error {
	err := s.Store.Save(ctx, c, l)
	s.wrote("save " + string(l.Status))
	return err
}

func (s crashingStore) Finish(ctx context.Context, c domain.Claim, l *domain.Lease) error {
	err := s.Store.Finish(ctx, c, l)
	s.wrote("finish " + string(l.Status))
	return err
}

func (s crashingStore) Prepared(ctx context.Context, c domain.Claim, r domain.Reservation, nodes ...string) error {
	err := s.Store.Prepared(ctx, c, r, nodes...)
	s.wrote("prepared")
	return err
}

func (s crashingStore) Released(ctx context.Context, c domain.Claim, r domain.Reservation, nodes ...string) error {
	err := s.Store.Released(ctx, c, r, nodes...)
	s.wrote("released")
	return err
}

func (s crashingStore) Reallocate(
	ctx context.Context, c domain.Claim, l domain.Lease, r domain.Reservation, from string,
) (string, bool, error) {
	to, ok, err := s.Store.Reallocate(ctx, c, l, r, from)
	s.wrote("reallocated")
	return to, ok, err
}

type crashingActions struct {
	leases.Actions
	*crasher
}

func (a crashingActions) Create(ctx context.Context, d domain.DelegatedAction) (domain.DelegatedAction, error) {
	made, err := a.Actions.Create(ctx, d)
	a.wrote("action " + string(d.Request.Action))
	return made, err
}

func (a crashingActions) Abandon(ctx context.Context, d domain.DelegatedAction, p *domain.Problem) error {
	err := a.Actions.Abandon(ctx, d, p)
	a.wrote("abandon " + string(d.Request.Action))
	return err
}
