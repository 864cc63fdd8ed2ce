package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const tenant = "5f1c7e0c2b6f4f0e9c1f6f0f3a5f8d12"

// testOutbox is an outbox with callbacks whose receivers get no handshake.
type testOutbox struct {
	postgres.Outbox
	events   postgres.Events
	conn     *pgx.Conn
	database string
}

func newTestOutbox(t *testing.T) testOutbox {
	t.Helper()
	database := testkit.Database(t)
	db := open(t, database)
	return testOutbox{
		Outbox: postgres.Outbox{DB: db}, events: postgres.Events{DB: db}, conn: testkit.Connect(t, database),
		database: database,
	}
}

func (m testOutbox) callback(t *testing.T) uuid.UUID {
	t.Helper()
	return testkit.AddCallback(t, m.conn, tenant, "https://receiver.example.com/x", domain.CallbackVerified, "whsec_x", "")
}

func (m testOutbox) claim(t *testing.T, room domain.Room) []domain.Attempt {
	t.Helper()
	if room.PerCallback == 0 {
		room.PerCallback = 8
	}
	return must(m.Claim(t.Context(), room, time.Minute))(t)
}

func names(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("subject-%03d", i)
	}
	return list
}

// TestClaim: at most so many streams of a callback in a copy, each held by one copy, those that waited longest first,
// and of a callback that gave no answer one stream in all.
func TestClaim(t *testing.T) {
	t.Parallel()
	m := newTestOutbox(t)
	first, second := m.callback(t), m.callback(t)
	testkit.AddEvents(t, m.conn, tenant, names(12), 2)
	mine := m.claim(t, domain.Room{Attempts: 10})
	of := func(list []domain.Attempt, callback uuid.UUID) (n int) {
		for _, a := range list {
			if a.Callback.ID == callback {
				n++
			}
		}
		return n
	}
	if a, b := of(mine, first), of(mine, second); len(mine) != 10 || max(a, b) != 8 {
		t.Fatalf("claimed %d and %d, want 8 of one and 2 of the other", a, b)
	}
	held := []domain.StreamsInFlight{
		{ProjectID: tenant, CallbackID: first, Streams: of(mine, first)},
		{ProjectID: tenant, CallbackID: second, Streams: of(mine, second)},
	}
	more := m.claim(t, domain.Room{Attempts: 100, InFlight: held})
	if a, b := of(mine, first)+of(more, first), of(mine, second)+of(more, second); a != 8 || b != 8 {
		t.Errorf("one copy holds %d and %d", a, b)
	}
	theirs := m.claim(t, domain.Room{Attempts: 100})
	seen := map[string]bool{}
	for _, a := range slices.Concat(mine, more, theirs) {
		key := a.Callback.ID.String() + a.Stream
		if seen[key] || a.Seq != 1 || a.Event.Seq != 1 || a.Event.Subject != a.Stream[len(tenant)+1:] {
			t.Errorf("claimed twice, or not the first: %+v", a)
		}
		seen[key] = true
	}
	if len(seen) != 24 {
		t.Errorf("%d streams were claimed, want all 24", len(seen))
	}
	exec(t, m.conn, "update streams set claim_id = null, claimed_until = null")
	exec(t, m.conn, "update callbacks set failures = 3, not_before = now() - interval '1 second'")
	if n := len(m.claim(t, domain.Room{Attempts: 100})); n != 0 {
		t.Errorf("%d of silent callbacks were claimed among the others", n)
	}
	silent := m.claim(t, domain.Room{Attempts: 100, Failing: true})
	if of(silent, first) != 1 || of(silent, second) != 1 || silent[0].Silences != 3 {
		t.Errorf("of silent callbacks %d streams were claimed, want one each", len(silent))
	}
	if n := len(m.claim(t, domain.Room{Attempts: 100, Failing: true})); n != 0 {
		t.Errorf("%d more of silent callbacks", n)
	}
}

// TestBusyCallbacksTakeNoSlots of others: the one that waited longest has as many streams here as it may have.
func TestBusyCallbacksTakeNoSlots(t *testing.T) {
	t.Parallel()
	m := newTestOutbox(t)
	full := m.callback(t)
	testkit.AddEvents(t, m.conn, tenant, names(12), 1)
	if n := len(m.claim(t, domain.Room{Attempts: 100})); n != 8 {
		t.Fatalf("%d were claimed, want 8", n)
	}
	other := m.callback(t)
	exec(t, m.conn, "update callbacks set served_at = now() - case id when '"+full.String()+"' then interval '1 "+
		"hour' else interval '0' end")
	testkit.AddEvents(t, m.conn, tenant, []string{"late"}, 1)
	held := []domain.StreamsInFlight{{ProjectID: tenant, CallbackID: full, Streams: 8}}
	if due := m.claim(t, domain.Room{Attempts: 1, InFlight: held}); len(due) != 1 || due[0].Callback.ID != other {
		t.Errorf("claimed %+v, want the other's", due)
	}
}

// TestFenced: a replica whose claim has expired writes nothing.
func TestFenced(t *testing.T) {
	t.Parallel()
	m := newTestOutbox(t)
	m.callback(t)
	testkit.AddEvents(t, m.conn, tenant, names(1), 3)
	sleeper := m.claim(t, domain.Room{Attempts: 1})[0]
	exec(t, m.conn, "update streams set claimed_until = now() - interval '1 second'")
	awake := m.claim(t, domain.Room{Attempts: 1})[0]
	_, delivered := m.MarkDelivered(t.Context(), sleeper, 200, true, time.Minute)
	_, _, failed := m.MarkFailed(t.Context(), sleeper, domain.Outcome{Answer: 500}, time.Hour)
	if !errors.Is(delivered, domain.ErrFenced) || !errors.Is(failed, domain.ErrFenced) {
		t.Errorf("got %v, %v", delivered, failed)
	}
	noError(t, m.Release(t.Context(), sleeper))
	next, err := m.MarkDelivered(t.Context(), awake, 200, true, time.Minute)
	if err != nil || next == nil || next.Seq != 2 || next.Claim != awake.Claim {
		t.Fatalf("got %+v %v", next, err)
	}
	if next, err = m.MarkDelivered(t.Context(), *next, 200, false, time.Minute); err != nil || next != nil {
		t.Errorf("got %+v %v", next, err)
	}
	if last := m.claim(t, domain.Room{Attempts: 9}); len(last) != 1 || last[0].Seq != 3 {
		t.Errorf("left are %+v", last)
	}
}

// TestEveryEventIsDelivered: copies deliver while events are written in transactions that take their time, so that
// streams become empty and are filled at the same moment. Every event is delivered, in order, once.
func TestEveryEventIsDelivered(t *testing.T) {
	t.Parallel()
	const writers, each, copies = 8, 60, 4
	m := newTestOutbox(t)
	m.callback(t)
	var writing, delivering sync.WaitGroup
	for w := range writers {
		conn := testkit.Connect(t, m.database)
		writing.Go(func() {
			for range each {
				m.write(t, conn, names(writers)[w])
			}
		})
	}
	done := make(chan struct{})
	var mu sync.Mutex
	got := map[string][]int64{}
	for range copies {
		delivering.Go(func() {
			for last := false; ; {
				due, err := m.Claim(context.Background(), domain.Room{Attempts: 4, PerCallback: 4}, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				for _, a := range due {
					for next := &a; next != nil; {
						mu.Lock()
						got[next.Event.Subject] = append(got[next.Event.Subject], next.Event.Seq)
						mu.Unlock()
						if next, err = m.MarkDelivered(context.Background(), *next, 204, rand.IntN(3) > 0,
							time.Minute); err != nil {
							t.Error(err)
						}
					}
				}
				if last && len(due) == 0 {
					return
				}
				select {
				case <-done:
					last = true
				default:
				}
			}
		})
	}
	writing.Wait()
	close(done)
	delivering.Wait()
	for _, subject := range names(writers) {
		if seqs := got[subject]; len(seqs) != each || !slices.IsSorted(seqs) ||
			len(slices.Compact(slices.Clone(seqs))) != each {
			t.Errorf("%s: %v", subject, seqs)
		}
	}
	wantValue(t, m.conn, 0, "%d streams are not empty", "select count(*)::int from streams where head < tail")
}

// crowded is a database in which one project has a hundred callbacks that have waited forever, and another has one that
// was served just now.
func crowded(t *testing.T, status domain.CallbackStatus) (postgres.Outbox, *pgx.Conn) {
	t.Helper()
	url := testkit.Database(t)
	conn := testkit.Connect(t, url)
	for n := range 101 {
		project := "crowd"
		if n == 100 {
			project = "alone"
		}
		testkit.AddCallback(t, conn, project, fmt.Sprintf("https://r%d.example.com/", n), status, "whsec_x", "")
	}
	_, err := conn.Exec(t.Context(), `
update callbacks set not_before = now() - interval '1 second', served_at = now() where project_id = 'alone'`)
	if err != nil {
		t.Fatal(err)
	}
	for _, project := range []string{"crowd", "alone"} {
		testkit.AddEvents(t, conn, project, []string{uuid.NewString()}, 1)
	}
	return postgres.Outbox{DB: open(t, url)}, conn
}

// projects are those of attempts, in their number.
func projects(list []domain.Attempt) map[string]int {
	found := map[string]int{}
	for _, a := range list {
		found[a.Callback.ProjectID]++
	}
	return found
}

// TestProjectsTakeTurns: a project's many callbacks do not keep another's waiting.
func TestProjectsTakeTurns(t *testing.T) {
	t.Parallel()
	t.Run("deliveries", func(t *testing.T) {
		t.Parallel()
		outbox, conn := crowded(t, domain.CallbackVerified)
		room := domain.Room{Attempts: 10, PerCallback: 8}
		first, err := outbox.Claim(t.Context(), room, time.Minute)
		if got := projects(first); err != nil || got["alone"] != 1 || got["crowd"] != 9 {
			t.Fatalf("claimed %v: %v", got, err)
		}
		// While nine of the crowd are in work, a slot that becomes free is for the other project.
		for _, a := range first {
			if a.Callback.ProjectID == "crowd" {
				room.InFlight = append(room.InFlight, domain.StreamsInFlight{
					ProjectID: "crowd", CallbackID: a.Callback.ID, Streams: 1,
				})
			}
		}
		testkit.AddEvents(t, conn, "alone", []string{uuid.NewString()}, 1)
		room.Attempts = 1
		next, err := outbox.Claim(t.Context(), room, time.Minute)
		if got := projects(next); err != nil || got["alone"] != 1 {
			t.Errorf("then claimed %v: %v", got, err)
		}
	})
	t.Run("handshakes", func(t *testing.T) {
		t.Parallel()
		outbox, conn := crowded(t, domain.CallbackPending)
		first, err := outbox.ClaimHandshakes(t.Context(), 10, time.Minute)
		if got := projects(first); err != nil || got["alone"] != 1 || got["crowd"] != 9 {
			t.Fatalf("claimed %v: %v", got, err)
		}
		testkit.AddCallback(t, conn, "another", "https://r.example.com/", domain.CallbackPending, "whsec_x", "")
		next, err := outbox.ClaimHandshakes(t.Context(), 1, time.Minute)
		if got := projects(next); err != nil || got["another"] != 1 {
			t.Errorf("then claimed %v: %v", got, err)
		}
	})
}
