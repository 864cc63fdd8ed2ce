package runleases

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func newVolume(onEnd domain.VolumeEnd) domain.Reservation {
	return domain.Reservation{
		ID: uuid.New(), Type: domain.VolumeReservation,
		Volume: &domain.LeasedVolume{IsNew: true, SizeGB: 1, Name: "data", OnEnd: onEnd},
	}
}

// TestVolumeCrashPoints: a replica dies after each write that a volume adds to a lease's life, and another one
// continues: the volume is attached once its instance runs, and detached once it is shelved, each requested once.
func TestVolumeCrashPoints(t *testing.T) {
	t.Parallel()
	writes := strings.Split("save step starting, action start, save starting, save step starting, "+
		"action attach_volume, save starting, save active, save active, save step ending, "+
		"action shelve, save ending, save step ending, action detach_volume, save ending, finish ended", ", ")
	for at := range len(writes) + 1 { // 0 = no one dies
		name := "no one dies"
		if at > 0 {
			name = fmt.Sprintf("%d after %s", at, writes[at-1])
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c := newCrashWorld(t, domain.OnEndShelve, newVolume(domain.VolumeEndSnapshot)), &crasher{at: at}
			w.exec(t, "update instances set state = 'shelved', raw_status = 'SHELVED_OFFLOADED'")
			w.exec(t, "update leases set starts_at = now(), before_end = '0'")
			w.becomes(t, c, "active", "active")
			w.exec(t, "update leases set due_at = now(), claimed_until = null")
			w.replica(c).pass(t) // upkeep
			w.exec(t, "update leases set due_at = now(), claimed_until = null, ends_at = now()")
			w.becomes(t, c, "ended", "shelved")
			for sql, want := range map[string]string{
				"select string_agg(verb, ' ' order by created_at) from actions": "start attach_volume shelve detach_volume",
				`select concat_ws(' ', status, is_open::text, volume->>'id', volume->>'snapshot_id') from reservations
				where type = 'volume'`: "ended false v s",
				`select string_agg(concat_ws(' ', data->>'status', data->>'volume_ids'), ', ' order by seq) from events
				where subject = (select id::text from leases)`: `pending, starting, active ["v"], ending ["v"], ended ["v"]`,
				"select concat_ws(' ', start_result, end_result, due_at) from leases": "done done",
			} {
				if got := testkit.Scalar[string](t, w.rows, sql); got != want {
					t.Errorf("%s: got %q, want %q", sql, got, want)
				}
			}
			if at == 0 && !slices.Equal(c.names, writes) {
				t.Errorf("it wrote\n%v, the table has\n%v", c.names, writes)
			}
			if at > len(c.names) {
				t.Errorf("it did not die: it wrote %v", c.names)
			}
		})
	}
}

// keep has the lease, as it was read, keep its volumes.
func (w crashWorld) keep(t *testing.T, read domain.Lease) error {
	t.Helper()
	after := read
	after.VolumeEnds = map[uuid.UUID]domain.VolumeEnd{}
	for _, r := range read.Reservations {
		if r.Volume != nil {
			after.VolumeEnds[r.ID] = domain.VolumeEndKeep
		}
	}
	_, err := postgres.Leases{DB: w.db}.Change(t.Context(), read, after, nil, domain.LeaseRules{})
	return err
}

// TestVolumesBesideThePath: what becomes of a lease's volume when its user ends the lease early, its instance is
// deleted, or what was done for it has failed.
func TestVolumesBesideThePath(t *testing.T) {
	t.Parallel()
	const verbs = "select coalesce(string_agg(verb, ' ' order by created_at), '') from actions"
	begun := func(t *testing.T) crashWorld {
		t.Helper()
		w := newCrashWorld(t, domain.OnEndStop, newVolume(domain.VolumeEndDelete))
		w.exec(t, "update leases set starts_at = now(), before_end = '0'")
		return w
	}
	end := func(t *testing.T, w crashWorld, onEnd domain.OnEnd) {
		t.Helper()
		if _, err := (postgres.Leases{DB: w.db}).End(t.Context(), "p", w.lease, onEnd, nil); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		play  func(t *testing.T, w crashWorld)
		verbs string
		left  string // of the volume
	}{
		"ended before its start": {func(t *testing.T, w crashWorld) {
			w.exec(t, "update leases set starts_at = now() + interval '1 hour'")
			end(t, w, "")
		}, "", "ended"},
		"ended by its user": {func(t *testing.T, w crashWorld) {
			w.becomes(t, &crasher{}, "active", "active")
			end(t, w, "")
			w.becomes(t, &crasher{}, "ended", "stopped")
		}, "attach_volume stop detach_volume", "ended v"},
		"its user keeps it after all": {func(t *testing.T, w crashWorld) {
			w.becomes(t, &crasher{}, "active", "active")
			end(t, w, "")
			w.replica(&crasher{}).pass(t) // its instance ends first
			w.exec(t, "update leases set due_at = now()")
			claimed, err := postgres.Leases{DB: w.db}.Queue().Claim(t.Context(), time.Minute, 1, nil)
			if err != nil || len(claimed.Rows) != 1 {
				t.Fatalf("got %+v, %v", claimed, err)
			}
			stored := claimed.Rows[0].Value
			if err := w.keep(t, stored); err != nil {
				t.Error(err)
			}
			err = postgres.Leases{DB: w.db}.Save(t.Context(), claimed.Claim, &stored) // what it has read is older
			if !errors.Is(err, domain.ErrChanged) {
				t.Errorf("got %v", err)
			}
			w.act(t)
			w.replica(&crasher{}).pass(t)
			w.replica(&crasher{}).pass(t)
			if did := testkit.Scalar[string](t, w.rows, `select coalesce(string_agg(arguments->'volume'->>'on_end', ''), '')
				from actions where verb = 'detach_volume'`); did != "keep" {
				t.Errorf("it is detached with %q", did)
			}
			stored, err = postgres.Leases{DB: w.db}.Get(t.Context(), "p", w.lease)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.keep(t, stored); apperr.CodeOf(err) != apperr.Conflict {
				t.Errorf("too late: got %v", err)
			}
			w.becomes(t, &crasher{}, "ended", "stopped")
		}, "attach_volume stop detach_volume", "ended v"},
		"ended by its user, who leaves all as it is": {func(t *testing.T, w crashWorld) {
			w.becomes(t, &crasher{}, "active", "active")
			end(t, w, domain.OnEndNone)
			w.becomes(t, &crasher{}, "ended", "active")
		}, "attach_volume", "ended v"},
		"its instance is deleted during the lease": {func(t *testing.T, w crashWorld) {
			w.becomes(t, &crasher{}, "active", "active")
			w.exec(t, "update instances set state = 'deleted'")
			w.becomes(t, &crasher{}, "active", "deleted")
			w.exec(t, "update leases set ends_at = now(), due_at = now()")
			w.becomes(t, &crasher{}, "ended", "deleted")
		}, "attach_volume detach_volume", "ended v"},
		"its instance is deleted before the start": {func(t *testing.T, w crashWorld) {
			w.exec(t, "update instances set state = 'deleted'")
			w.becomes(t, &crasher{}, "cancelled", "deleted")
		}, "", "ended"},
		"attaching it fails once": {func(t *testing.T, w crashWorld) {
			w.replica(&crasher{}).pass(t)
			w.exec(t, `update actions set status = 'failed', outcome = '{"volume_id": "broken"}',
				problem = '{"code": "conflict", "detail": "no backend has room"}'`)
			w.exec(t, "update leases set due_at = now()")
			w.replica(&crasher{}).pass(t)
			reason := testkit.Scalar[string](t, w.rows, "select problem->>'detail' from leases")
			if reason != "no backend has room" {
				t.Errorf("the reason is %q", reason)
			}
			w.exec(t, "update leases set due_at = now()")
			w.becomes(t, &crasher{}, "active", "active")
		}, "attach_volume attach_volume", "active v"},
		"its instance does not start": {func(t *testing.T, w crashWorld) {
			w.exec(t, "update instances set state = 'shelved', raw_status = 'SHELVED_OFFLOADED'")
			for range 3 {
				w.exec(t, "update leases set due_at = now(), claimed_until = null")
				w.replica(&crasher{}).pass(t)
				w.exec(t, `update actions set status = 'failed', problem = '{"code": "conflict", "detail": "no host"}'
					where status = 'running'`)
			}
			if n := testkit.Scalar[int](t, w.rows, "select attempts from leases"); n != 1 {
				t.Errorf("%d failures count", n)
			}
		}, "start start", "pending"},
		"what was delegated ends meanwhile": {func(t *testing.T, w crashWorld) {
			w.becomes(t, &crasher{}, "active", "active")
			w.exec(t, "update connections set status = 'lost'")
			w.exec(t, "update leases set due_at = now(), claimed_until = null, status = 'ending', ends_at = now()")
			w.replica(&crasher{}).pass(t)
			got := testkit.Scalar[string](t, w.rows, "select concat_ws(' ', status, problem->>'code') from leases")
			if got != "error delegation_lost" {
				t.Errorf("the lease is %s", got)
			}
		}, "attach_volume", "active v"},
		"its user ends it while it is attached": {func(t *testing.T, w crashWorld) {
			w.replica(&crasher{}).pass(t) // requests it
			end(t, w, "")
			w.becomes(t, &crasher{}, "cancelled", "shelved")
		}, "attach_volume shelve detach_volume", "ended v"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begun(t)
			tc.play(t, w)
			if got := testkit.Scalar[string](t, w.rows, verbs); got != tc.verbs {
				t.Errorf("requested %q, want %q", got, tc.verbs)
			}
			left := testkit.Scalar[string](t, w.rows,
				"select concat_ws(' ', status, volume->>'id') from reservations where type = 'volume'")
			if left != tc.left {
				t.Errorf("its reservation is %q, want %q", left, tc.left)
			}
		})
	}
}
