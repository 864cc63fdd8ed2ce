package nodes

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestFollow has a row for what can have become of a server that Nova was requested to move.
func TestFollow(t *testing.T) {
	t.Parallel()
	late := moving(domain.LiveMigration, 1)
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
			stored: moving(domain.LiveMigration, 1), server: domain.Server{Status: "ACTIVE", Host: "b"}, want: "moved",
		},
		"it moves": {
			stored: moving(domain.LiveMigration, 1),
			server: domain.Server{Status: "MIGRATING", Task: "migrating", Host: "a"}, want: "migrating",
		},
		"it moves for too long": {
			stored: late, server: domain.Server{Status: "MIGRATING", Task: "migrating", Host: "a"}, want: "skipped",
			reason: "it has not moved within 1m0s: Nova is at work on it: migrating",
		},
		"Nova's record is not over": {
			stored: moving(domain.LiveMigration, 1), server: domain.Server{Status: "ACTIVE", Host: "a"},
			migration: &domain.Migration{Status: "running"}, want: "migrating",
		},
		"it has failed": {
			stored: moving(domain.LiveMigration, 1), server: domain.Server{Status: "ACTIVE", Host: "a"},
			migration: &domain.Migration{Status: "error"}, fault: "No valid host was found.", want: "pending",
			reason: "No valid host was found.",
		},
		"it has failed for the third time": {
			stored: moving(domain.LiveMigration, 3), server: domain.Server{Status: "ACTIVE", Host: "a"},
			migration: &domain.Migration{Status: "error"}, want: "skipped", reason: "Nova's migration is error",
		},
		"its failure broke it": {
			stored: moving(domain.ColdMigration, 1), server: domain.Server{Status: "ERROR", Host: "a"},
			migration: &domain.Migration{Status: "error"}, fault: "disk full", want: "skipped",
			reason: "it is in ERROR: Nova does not move it until its state is reset or it is deleted: disk full",
		},
		"the process died before the request": {
			stored: moving(domain.LiveMigration, 1), want: "pending",
			server: domain.Server{Status: "ACTIVE", Host: "a"},
			reason: "Nova has not moved it",
		},
		"it is to be confirmed": {
			stored: moving(domain.ColdMigration, 1), server: domain.Server{Status: "VERIFY_RESIZE", Host: "b"},
			migration: &domain.Migration{Status: "finished"}, want: "confirming", calls: "confirm 1",
		},
		"its owner has resized it": {
			stored: moving(domain.ColdMigration, 1), server: domain.Server{Status: "VERIFY_RESIZE", Host: "b"},
			migration: &domain.Migration{Status: "finished", IsResize: true}, want: "moved",
		},
		"Nova finishes it there": {
			stored: moving(domain.ColdMigration, 1),
			server: domain.Server{Status: "RESIZE", Task: "resize_finish", Host: "b"}, want: "migrating",
		},
		"it is in ERROR there": {
			stored: moving(domain.ColdMigration, 1),
			server: domain.Server{Status: "ERROR", Host: "b", Fault: &domain.Fault{Message: "no disk"}}, want: "moved",
			reason: "it is in ERROR on its new host: no disk",
		},
		"it was shelved": {
			stored: moving(domain.LiveMigration, 1), want: "skipped",
			server: domain.Server{Status: "SHELVED_OFFLOADED"},
			reason: "it is on no host any more: SHELVED_OFFLOADED",
		},
		"it was deleted": {stored: moving(domain.LiveMigration, 1), want: "skipped", reason: "it was deleted"},
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

// TestBegin has a row for what Nova may answer to the request to move a server.
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
			failed: apperr.New(apperr.Unavailable, "nova is unavailable"), want: domain.DrainRunning,
			reason: "nova is unavailable",
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

// TestPlan has a row for each status that Nova knows: none of them is moved in a way that Nova refuses.
func TestPlan(t *testing.T) {
	t.Parallel()
	methods := map[string]string{
		"ACTIVE": domain.LiveMigration, "PAUSED": domain.LiveMigration, "SHUTOFF": domain.ColdMigration,
		"BUILD": Wait, "MIGRATING": Wait, "RESIZE": Wait, "REVERT_RESIZE": Wait, "REBUILD": Wait, "REBOOT": Wait,
		"HARD_REBOOT": Wait, "PASSWORD": Wait,
		"ERROR": Skip, "VERIFY_RESIZE": Skip, "SUSPENDED": Skip, "RESCUE": Skip, "SHELVED": Skip,
		"SHELVED_OFFLOADED": Skip, "DELETED": Skip, "SOFT_DELETED": Skip, "of the future": Skip,
	}
	for _, status := range domain.ServerStatuses() {
		if methods[status] == "" {
			t.Errorf("no row for the status %s", status)
		}
	}
	for status, want := range methods {
		check(t, domain.Server{Status: status}, want)
		check(t, domain.Server{Status: status, Locked: true}, want)
		check(t, domain.Server{Status: status, Task: "powering-off"}, Wait)
	}
	check(t, domain.Server{Status: "UNKNOWN", Partial: true}, Wait)
}

func check(t *testing.T, s domain.Server, want string) {
	t.Helper()
	method, reason := Plan(s)
	hasReason := want == Wait || want == Skip
	if method != want || (reason != "") != hasReason {
		t.Errorf("%+v: got %q %q, want %q", s, method, reason, want)
	}
}

// TestRoom places the largest servers first, and each in what the ones before have left.
func TestRoom(t *testing.T) {
	t.Parallel()
	server := func(id, status string, ram int) domain.Server {
		return domain.Server{
			ID: id, Status: status, Image: &domain.ImageRef{ID: "i"},
			Flavor: domain.FlavorRef{VCPUs: 1, RAMMB: ram, DiskGB: 10},
		}
	}
	host := func(id string, ram, disk int) domain.ComputeHost {
		return domain.ComputeHost{
			ProviderID: id, VCPUs: 8, UsedVCPUs: 4, RAMMB: ram + 512, UsedRAMMB: 512, DiskGB: disk, UsedDiskGB: 0,
		}
	}
	small, large := server("small", "ACTIVE", 1024), server("large", "SHUTOFF", 4096)
	stays := server("stays", "ERROR", 1)
	volume := server("volume", "ACTIVE", 1024)
	volume.Image = nil
	unsized := domain.Server{ID: "unsized", Status: "ACTIVE"}
	type (
		servers = []domain.Server
		hosts   = []domain.ComputeHost
		words   = map[string]string
	)
	for name, tc := range map[string]struct {
		servers servers
		hosts   hosts
		want    words
	}{
		"both fit": {servers{small, large, stays}, hosts{host("a", 5120, 20)}, words{"small": "yes", "large": "yes"}},
		"on two hosts": {
			servers{small, large},
			hosts{host("a", 1024, 20), host("b", 4096, 20)},
			words{"small": "yes", "large": "yes"},
		},
		"the small does":   {servers{small, large}, hosts{host("a", 4000, 20)}, words{"small": "yes", "large": "no"}},
		"the second not":   {servers{small, large}, hosts{host("a", 4096, 20)}, words{"small": "no", "large": "yes"}},
		"no disk":          {servers{small, volume}, hosts{host("a", 4096, 9)}, words{"small": "no", "volume": "yes"}},
		"no other host":    {servers{small}, nil, words{"small": "no"}},
		"an unknown host":  {servers{small}, hosts{{}}, words{"small": "unknown"}},
		"an unknown size":  {servers{unsized}, hosts{host("a", 4096, 9)}, words{"unsized": "unknown"}},
		"nothing to place": {servers{stays}, nil, words{}},
	} {
		if got := Room(tc.servers, tc.hosts); !maps.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
