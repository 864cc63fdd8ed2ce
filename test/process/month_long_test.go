package process_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const stepHours = 72 // of a step in the database's clock

// month is a month of delegation in fast motion. The database's clock is moved; Keystone's is real.
type month struct {
	steps     int
	start     time.Time
	now       time.Time // by the database's clock
	database  string
	pool      *pgxpool.Pool
	env       map[string]string
	elsewhere string // the Keystone of another cloud: the same one at another address

	api, servers *testkit.Process
	replicas     [2]*testkit.Process // of run-connections
	kills        *rand.Rand
	killed       int

	colleague *testkit.Project // whose user is in each owner's project, and acts through the connections
	owners    []*owner
	all       []*delegated
}

// TestLongMonthOfDelegations: 200 connections of all kinds end at random moments in all ways there are. Two replicas of
// run-connections are at work, and one of them is killed now and then. In the end Keystone has the trusts of the active
// connections, and no others, and each end has its event once.
func TestLongMonthOfDelegations(t *testing.T) {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("MONTH_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("to run the same month once more: MONTH_SEED=%d", seed)
	m := newMonth(t, rand.New(rand.NewPCG(seed, 0)), 200)
	m.kills = rand.New(rand.NewPCG(seed, 1))
	uses := rand.New(rand.NewPCG(seed, 2))
	for step := 1; step <= m.steps; step++ {
		m.happen(t, step)
		m.use(t, uses)
		m.setClock(t, m.start.Add(time.Duration(step)*stepHours*time.Hour))
		m.settle(t, step)
	}
	for _, o := range m.owners {
		o.comeBack(t)
	}
	for _, l := range m.all {
		time.Sleep(time.Until(l.until.Add(time.Second)))
		l.isRefused = l.isRefused || !l.until.IsZero()
	}
	for n, l := range m.all { // what has ended can be deleted, too
		if n%7 == 0 && !l.isActive() && !strings.HasSuffix(l.events, "deleted") && l.owner.fate != projectDeleted {
			m.delete(t, l, m.colleagueIn(l.owner))
		}
	}
	m.setClock(t, m.now.Add(time.Hour))
	m.settle(t, m.steps+1)
	m.audit(t)
}

func newMonth(t *testing.T, random *rand.Rand, n int) *month {
	t.Helper()
	m := &month{steps: 10, start: time.Now(), database: testkit.Database(t), colleague: testkit.NewProject(t)}
	m.elsewhere, _ = testkit.Intercept(t, testkit.KeystoneURL(t), func(*http.Request) {})
	m.env = testkit.Env(t, m.database, map[string]string{"CONNECTION_CLOUDS": m.elsewhere})
	m.setClock(t, m.start)
	m.pool = testkit.Pool(t, m.database)
	m.api, m.servers = m.spawn(t, "connections"), m.spawn(t, "servers")
	for k := range m.replicas {
		m.replicas[k] = m.spawn(t, "run-connections")
	}
	m.plan(t, random, n)
	began := time.Now()
	for _, isLast := range []bool{false, true} { // those that end by themselves soon
		var all sync.WaitGroup
		for _, o := range m.owners {
			all.Go(func() {
				token := o.Token(t)
				for _, l := range m.all {
					if l.owner == o && (l.end == credentialEnds) == isLast {
						m.delegate(t, l, token)
					}
				}
			})
		}
		all.Wait()
	}
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("made %d connections in %s", n, time.Since(began).Round(time.Second))
	// The database's clock is going to be ahead of Keystone's: by it trusts end later. And a credential ends before its
	// connection.
	m.exec(t, "update connections set trust_expires_at = trust_expires_at + interval '40 days'")
	for _, l := range m.all {
		if l.kind == trust {
			l.inKeystone = testkit.Scalar[string](t, m.pool, "select delegation_id from connections where id = $1",
				l.id)
		}
		if l.end == credentialEnds {
			m.exec(t, "update connections set expires_at = expires_at + interval '60 days' where id = $1", l.id)
		}
	}
	return m
}

func (m *month) spawn(t *testing.T, function string) *testkit.Process {
	t.Helper()
	m.env["FUNCTION_TARGET"] = function
	return testkit.Spawn(t, m.env)
}

func (m *month) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := m.pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (m *month) setClock(t *testing.T, now time.Time) {
	t.Helper()
	m.now = now
	testkit.SetClock(t, m.database, now)
}

// happen is what owners and Keystone do before the clock moves to the end of a step.
func (m *month) happen(t *testing.T, step int) {
	t.Helper()
	for _, o := range m.owners {
		if o.returns == step {
			o.comeBack(t)
		}
		if o.leaves == step {
			m.leave(t, o)
		}
	}
	for _, l := range m.all {
		if l.step == step && l.isActive() {
			m.finish(t, l)
		}
	}
}

// use requests something through some connections that are active, so that there are sessions and work that waits.
func (m *month) use(t *testing.T, random *rand.Rand) {
	t.Helper()
	token := m.colleague.Token(t)
	for range 12 {
		l := m.all[random.IntN(len(m.all))]
		if !l.isActive() || l.end == idle || l.end == credentialEnds {
			continue
		}
		order := fmt.Sprintf(`{"server_id": %q, "connection_id": %q}`, uuid.NewString(), l.id)
		a := m.servers.As(token).Post(t, "/v1/servers", order)
		if a.Status != http.StatusAccepted {
			t.Errorf("%s: %d %s", l, a.Status, a.Body)
		}
	}
}

// settle wakes both replicas until all is as it should be. Those that wait for a pause are tried immediately, and the
// clock goes on past the claims of a replica that was killed.
func (m *month) settle(t *testing.T, step int) {
	t.Helper()
	for began := time.Now(); ; {
		m.tick(t, step)
		wrong := m.wrong(t, step)
		if len(wrong) == 0 {
			t.Logf("step %d took %s", step, time.Since(began).Round(time.Second))
			return
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("step %d: %d are not as they should be:\n%s", step, len(wrong), strings.Join(wrong, "\n"))
		}
		took := time.Since(began).Round(time.Second)
		t.Logf("step %d after %s: %d are not settled, such as %s", step, took, len(wrong), wrong[0])
		m.setClock(t, m.now.Add(2*time.Minute))
		for _, o := range m.owners {
			if !o.isAbsent {
				m.exec(t, "update connections set not_before = null where project_id = $1", o.ID)
			}
		}
	}
}

// tick wakes both replicas, and kills one of them in the middle of every other step.
func (m *month) tick(t *testing.T, step int) {
	t.Helper()
	var events sync.WaitGroup
	for _, p := range m.replicas {
		events.Go(func() { _, _ = p.TryTick(t, "run-connections") })
	}
	if step%2 == 1 && m.killed <= step/2 {
		time.Sleep(time.Duration(200+m.kills.IntN(4000)) * time.Millisecond)
		one := m.kills.IntN(len(m.replicas))
		m.replicas[one].Kill()
		m.killed++
		m.replicas[one] = m.spawn(t, "run-connections")
	}
	events.Wait()
}

// found is how a connection is in the database.
type found struct {
	ID, Events, Revocations string
	HasSecret, IsRevoked    bool
	IsChecked               bool // since the last step began
	Seq, LastSeq            int64
}

func (m *month) read(t *testing.T) map[string]found {
	t.Helper()
	rows, _ := m.pool.Query(context.Background(), `
select c.id::text,
       string_agg(e.data->>'status', ' ' order by e.seq) filter (where e.type = 'cloudfn.connection.state.v1'),
       coalesce(string_agg(e.data->>'status', ' ' order by e.seq)
                filter (where e.type = 'cloudfn.connection.revocation.v1'), ''),
       c.secret is not null, c.revoked, c.checked_at >= clock_timestamp() - interval '1 day', c.seq, max(e.seq)
from connections c join events e on e.project_id = c.project_id and e.subject = c.id::text group by c.project_id, c.id`)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[found])
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]found{}
	for _, f := range list {
		all[f.ID] = f
	}
	return all
}

// wrong says which connections are not as they should be by now.
func (m *month) wrong(t *testing.T, step int) (wrong []string) {
	t.Helper()
	rows := m.read(t)
	for _, l := range m.all {
		if why := l.differs(rows[l.id], step); why != "" {
			wrong = append(wrong, fmt.Sprintf("%s: %s: %+v", l, why, rows[l.id]))
		}
	}
	return wrong
}

func (l *delegated) differs(f found, step int) string {
	isOver := (l.end == expires || l.end == idle) && step >= l.step
	want := []string{l.events}
	switch {
	case !l.isActive():
	case isOver && l.isRefused: // whichever is found first
		want = []string{"active expired", "active lost"}
	case isOver:
		want = []string{"active expired"}
	case l.isRefused:
		want = []string{"active lost"}
	case !l.until.IsZero() && time.Now().After(l.until): // it may have been checked before that
		want = append(want, "active lost")
	}
	if !slices.Contains(want, f.Events) {
		return "expected the events " + strings.Join(want, " or ")
	}
	l.events = f.Events
	switch {
	case l.isActive() && !f.IsChecked:
		return "expected to be checked"
	case !l.isActive() && f.HasSecret:
		return "expected without its secret"
	case l.isActive() || l.kind != trust:
	case l.owner.isAbsent && !f.IsRevoked:
		l.isPending = true
		if f.Revocations != "pending" {
			return "expected the event pending"
		}
	case !f.IsRevoked:
		return "expected to be revoked"
	}
	return ""
}

// audit holds Keystone's trusts, the events and the actions against what should be.
func (m *month) audit(t *testing.T) {
	t.Helper()
	kept, count := []string{}, map[string]int{}
	for _, l := range m.all {
		if l.kind == trust && l.isActive() {
			kept = append(kept, l.inKeystone)
		}
		count[l.events]++
	}
	var have []string
	for _, o := range m.owners {
		have = append(have, o.TrustsForAdmin(t)...)
	}
	slices.Sort(kept)
	slices.Sort(have)
	if !slices.Equal(kept, have) {
		t.Errorf("Keystone has the trusts\n%v, expected\n%v", have, kept)
	}
	rows, pending := m.read(t), 0
	for _, l := range m.all {
		f := rows[l.id]
		if f.Seq != f.LastSeq || int(f.Seq) != len(strings.Fields(f.Events+" "+f.Revocations)) {
			t.Errorf("%s: the numbers of its events have gaps: %+v", l, f)
		}
		if f.Revocations != "pending done" && (l.isPending || f.Revocations != "") {
			t.Errorf("%s: the events of its revocation are %q", l, f.Revocations)
		}
		if l.isPending {
			pending++
		}
	}
	t.Logf("%v; %d trusts could not be deleted at first; %d kills", count, pending, m.killed)
	odd := testkit.Scalar[int](t, m.pool, `select count(*)::int from actions a join connections c on c.id = a.connection_id
where a.status <> 'failed' or c.status = 'active' and a.problem->>'code' <> 'not_found'`)
	if odd != 0 {
		t.Errorf("%d actions have not ended as they should", odd)
	}
}
