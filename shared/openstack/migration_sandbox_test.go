package openstack_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongMigrations moves a server live and another one cold, reads Nova's records of it, and its words when no host
// is left.
func TestLongMigrations(t *testing.T) {
	t.Parallel()
	hosts := testkit.ReservableHosts(t)
	s, ctx := testkit.Session(t, "leases"), t.Context()
	made := testkit.NewProject(t).ServersOn(t, hosts[0], "moves", 2)
	live, cold := made[0].ID, made[1].ID
	becomes := func(id, status, host string) {
		t.Helper()
		testkit.Eventually(t, 2*time.Minute, "the server is "+status+" on "+host, func() bool {
			time.Sleep(time.Second)
			found, err := s.Server(ctx, id)
			return err == nil && found.Status == status && found.Host == host && found.Task == ""
		})
	}
	for i, host := range hosts {
		service, err := s.ComputeService(ctx, host)
		if err == nil {
			err = s.DisableService(ctx, service.ServiceID, domain.CordonMark+"test")
		}
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := s.LiveMigrate(ctx, live); err != nil {
				t.Fatal(err)
			}
			if err := s.LiveMigrate(ctx, live); apperr.CodeOf(err) != apperr.Conflict {
				t.Errorf("while it moves: %v", err)
			}
			testkit.Act(t, cold, map[string]any{"os-stop": nil})
			becomes(cold, "SHUTOFF", hosts[0])
			if err := s.ColdMigrate(ctx, cold); err != nil {
				t.Fatal(err)
			}
			becomes(live, "ACTIVE", hosts[1])
			becomes(cold, "VERIFY_RESIZE", hosts[1])
		}
	}
	last, found, err := s.LastMigration(ctx, cold, hosts[0])
	if err != nil || !found || last.Status != "finished" || last.Target != hosts[1] || last.IsResize {
		t.Errorf("its record is %+v %t %v", last, found, err)
	}
	for range 2 { // a confirmation may be repeated
		if err := s.ConfirmMigration(ctx, cold); err != nil {
			t.Errorf("confirm: %v", err)
		}
	}
	becomes(cold, "SHUTOFF", hosts[1])
	if _, found, err := s.LastMigration(ctx, cold, hosts[1]); err != nil || found {
		t.Errorf("a record of the other host: %t %v", found, err)
	}
	if fault, err := s.MigrationFault(ctx, live); err != nil || fault != "" {
		t.Errorf("its fault is %q: %v", fault, err)
	}
	if err := s.LiveMigrate(ctx, live); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "no host is valid", func() bool {
		time.Sleep(time.Second)
		last, _, err := s.LastMigration(ctx, live, hosts[1])
		return err == nil && last.HasFailed()
	})
	testkit.Eventually(t, time.Minute, "Nova says why", func() bool {
		time.Sleep(time.Second)
		fault, err := s.MigrationFault(ctx, live)
		return err == nil && strings.Contains(fault, "No valid host")
	})
	if _, err := s.ComputeService(ctx, "no-such-host"); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("an unknown host: %v", err)
	}
}
