package nodes

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestFollow has a row for what can have become of a server that Nova was asked to move.
func TestFollow(t *testing.T) {
	t.Parallel()
	late := asked(domain.LiveMigration, 1)
	late.BegunAt = epoch.Add(-time.Hour)
	for name, tc := range map[string]struct {
		stored    domain.DrainServer
		server    domain.Server
		migration *domain.Migration
		fault     string
		want      domain.DrainServerStatus
		reason    string
		calls     string
	}{
		"it has moved": {
			stored: asked(domain.LiveMigration, 1), server: domain.Server{Status: "ACTIVE", Host: "b"}, want: "moved",
		},
		"it moves": {
			stored: asked(domain.LiveMigration, 1),
			server: domain.Server{Status: "MIGRATING", Task: "migrating", Host: "a"}, want: "migrating",
		},
		"it moves for too long": {
			stored: late, server: domain.Server{Status: "MIGRATING", Task: "migrating", Host: "a"}, want: "skipped",
			reason: "it has not moved within 1m0s: Nova is at work on it: migrating",
		},
		"Nova's record is not over": {
			stored: asked(domain.LiveMigration, 1), server: domain.Server{Status: "ACTIVE", Host: "a"},
			migration: &domain.Migration{Status: "running"}, want: "migrating",
		},
		"it has failed": {
			stored: asked(domain.LiveMigration, 1), server: domain.Server{Status: "ACTIVE", Host: "a"},
			migration: &domain.Migration{Status: "error"}, fault: "No valid host was found.", want: "pending",
			reason: "No valid host was found.",
		},
		"it has failed for the third time": {
			stored: asked(domain.LiveMigration, 3), server: domain.Server{Status: "ACTIVE", Host: "a"},
			migration: &domain.Migration{Status: "error"}, want: "skipped", reason: "Nova's migration is error",
		},
		"its failure broke it": {
			stored: asked(domain.ColdMigration, 1), server: domain.Server{Status: "ERROR", Host: "a"},
			migration: &domain.Migration{Status: "error"}, fault: "disk full", want: "skipped",
			reason: "it is in ERROR: Nova does not move it until its state is reset or it is deleted: disk full",
		},
		"the process died before it asked": {
			stored: asked(domain.LiveMigration, 1), server: domain.Server{Status: "ACTIVE", Host: "a"}, want: "pending",
			reason: "Nova has not moved it",
		},
		"it is to be confirmed": {
			stored: asked(domain.ColdMigration, 1), server: domain.Server{Status: "VERIFY_RESIZE", Host: "b"},
			migration: &domain.Migration{Status: "finished"}, want: "confirming", calls: "confirm 1",
		},
		"its owner has resized it": {
			stored: asked(domain.ColdMigration, 1), server: domain.Server{Status: "VERIFY_RESIZE", Host: "b"},
			migration: &domain.Migration{Status: "finished", IsResize: true}, want: "moved",
		},
		"Nova finishes it there": {
			stored: asked(domain.ColdMigration, 1),
			server: domain.Server{Status: "RESIZE", Task: "resize_finish", Host: "b"}, want: "migrating",
		},
		"it is in ERROR there": {
			stored: asked(domain.ColdMigration, 1),
			server: domain.Server{Status: "ERROR", Host: "b", Fault: &domain.Fault{Message: "no disk"}}, want: "moved",
			reason: "it is in ERROR on its new host: no disk",
		},
		"it was shelved": {
			stored: asked(domain.LiveMigration, 1), server: domain.Server{Status: "SHELVED_OFFLOADED"}, want: "skipped",
			reason: "it is on no host any more: SHELVED_OFFLOADED",
		},
		"it was deleted": {stored: asked(domain.LiveMigration, 1), want: "skipped", reason: "it was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nova, drains, drain := oneServer("", tc.stored)
			tc.server.ID = "1"
			if nova.fault = tc.fault; tc.server.Status == "" {
				delete(nova.servers, "1")
			} else {
				nova.servers["1"] = tc.server
			}
			if tc.migration != nil {
				nova.migration["1"] = *tc.migration
			}
			if err := run(t, nova, drains, drain, epoch); err != nil {
				t.Fatal(err)
			}
			got := drains.saved.Servers[0]
			if got.Status != tc.want || got.Reason != tc.reason || slices.Compare(nova.calls, words(tc.calls)) != 0 {
				t.Errorf("got %+v, calls %v", got, nova.calls)
			}
			if stored, ok := drains.servers["1"]; ok != (got != tc.stored) || ok && stored != got {
				t.Errorf("stored is %+v, not %+v", stored, got)
			}
		})
	}
}

func words(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// TestBegin has a row for what Nova may answer when it is asked to move a server.
func TestBegin(t *testing.T) {
	t.Parallel()
	again := domain.DrainServer{ServerID: "1", Status: domain.DrainPending, Attempts: 1, BegunAt: epoch}
	third := domain.DrainServer{ServerID: "1", Status: domain.DrainPending, Attempts: 2}
	for name, tc := range map[string]struct {
		stored domain.DrainServer
		status string
		answer error
		want   domain.DrainServerStatus
		call   string
		drain  string // its reason
		reason string // how that of the server begins
	}{
		"live":         {status: "ACTIVE", want: "migrating", call: "live 1"},
		"cold":         {status: "SHUTOFF", want: "migrating", call: "cold 1"},
		"not possible": {status: "ERROR", want: "skipped"},
		"not now":      {status: "BUILD", want: "pending"},
		"refused": {
			status: "ACTIVE", answer: apperr.New(apperr.Conflict, "no"), want: "pending", call: "live 1",
		},
		"refused for the third time": {
			stored: third, status: "ACTIVE", answer: apperr.New(apperr.Invalid, "no"), want: "skipped", call: "live 1",
		},
		"too early after a failure": {stored: again, status: "ACTIVE", want: "pending"},
		"listed, and not found": { // deleted meanwhile, or Nova hides other projects' servers from the account
			status: "ACTIVE", answer: apperr.New(apperr.NotFound, "no"), want: "pending", call: "live 1",
		},
		"not found for the third time": {
			stored: third, status: "ACTIVE", answer: apperr.New(apperr.NotFound, "no"), want: "skipped", call: "live 1",
			reason: "Nova lists it on the host but does not find it",
		},
		"no answer": {
			status: "ACTIVE", answer: apperr.New(apperr.Timeout, "nova is slow"), want: "migrating", call: "live 1",
			drain: "nova is slow",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nova, drains, drain := oneServer(tc.status, tc.stored)
			nova.fails["live"] = tc.answer
			if err := run(t, nova, drains, drain, epoch.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			if got := drains.servers["1"]; got.Status != tc.want && drains.saved.Servers[0].Status != tc.want {
				t.Errorf("got %+v, want %s", drains.saved.Servers[0], tc.want)
			}
			if slices.Compare(nova.calls, words(tc.call)) != 0 || drains.saved.Reason != tc.drain ||
				!strings.HasPrefix(drains.saved.Servers[0].Reason, tc.reason) {
				t.Errorf("calls %v, the drain says %q of %+v", nova.calls, drains.saved.Reason, drains.saved.Servers[0])
			}
		})
	}
}

// TestFenced calls Nova no more after another replica has claimed the drain.
func TestFenced(t *testing.T) {
	t.Parallel()
	nova, drains, drain := oneServer("ACTIVE", domain.DrainServer{ServerID: "1", Status: domain.DrainPending})
	drains.fenced = true
	if err := run(t, nova, drains, drain, epoch); !errors.Is(err, domain.ErrFenced) || len(nova.calls) != 0 {
		t.Errorf("got %v, calls %v", err, nova.calls)
	}
}

// TestHosts has a row for what can be wrong with the host of a drain. Servers that move are followed in any case.
func TestHosts(t *testing.T) {
	t.Parallel()
	gone := apperr.New(apperr.NotFound, "no host")
	for name, tc := range map[string]struct {
		host   domain.ComputeHost
		failed error
		status domain.DrainStatus
		want   domain.DrainStatus
		reason string
		moves  bool
	}{
		"good": {host: domain.ComputeHost{IsUp: true}, want: domain.DrainRunning, moves: true},
		"uncordoned": {
			host: domain.ComputeHost{IsUp: true, IsEnabled: true}, want: domain.DrainFailed,
			reason: "the host is not cordoned any more",
		},
		"down": {want: domain.DrainFailed, reason: "the host is down, and such a host is not drained"},
		"gone": {failed: gone, want: domain.DrainFailed, reason: "Nova has no such host any more"},
		"cancelled": {
			host: domain.ComputeHost{IsUp: true}, status: domain.DrainCancelled, want: domain.DrainCancelled,
		},
		"its cell is down": {
			host: domain.ComputeHost{CellDown: true}, want: domain.DrainRunning,
			reason: "the host's cell does not answer",
		},
		"unreadable": {
			failed: apperr.New(apperr.Unavailable, "nova is away"), want: domain.DrainRunning, reason: "nova is away",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nova, drains, drain := oneServer("ACTIVE", domain.DrainServer{ServerID: "1", Status: domain.DrainPending})
			nova.host, nova.fails["service"] = tc.host, tc.failed
			if tc.status != "" {
				drain.Status = tc.status
			}
			if err := run(t, nova, drains, drain, epoch); err != nil {
				t.Fatal(err)
			}
			got := drains.saved
			if got.Status != tc.want || got.Reason != tc.reason || (len(nova.calls) > 0) != tc.moves ||
				got.DueAt.IsZero() != (got.Status != domain.DrainRunning) {
				t.Errorf("got %+v, calls %v", got, nova.calls)
			}
		})
	}
}

// TestNoAccount says in the drain why it waits.
func TestNoAccount(t *testing.T) {
	t.Parallel()
	_, drains, drain := oneServer("ACTIVE", domain.DrainServer{})
	engine := Engine{Drains: drains, Wake: func(...string) {}}
	if err := engine.Run(t.Context(), domain.NewClaim(), drain, epoch); err != nil ||
		drains.saved.Reason != ErrNoAccount.Message || drains.saved.DueAt.IsZero() {
		t.Errorf("got %+v %v", drains.saved, err)
	}
}

// TestParallel begins no more servers than may move at a time. The drain does not say how many.
func TestParallel(t *testing.T) {
	t.Parallel()
	nova, drains, drain := oneServer("ACTIVE", domain.DrainServer{})
	drain.Parallel = 0
	for _, id := range []string{"2", "3", "4", "5"} {
		nova.servers[id] = domain.Server{ID: id, Status: "ACTIVE", Host: "a"}
	}
	drain.Servers = []domain.DrainServer{{
		ServerID: "5", Method: domain.LiveMigration, Status: domain.DrainMigrating, BegunAt: epoch,
	}}
	nova.servers["5"] = domain.Server{ID: "5", Status: "MIGRATING", Task: "migrating", Host: "a"}
	if err := run(t, nova, drains, drain, epoch); err != nil || len(nova.calls) != 1 {
		t.Errorf("calls %v: %v", nova.calls, err)
	}
}
