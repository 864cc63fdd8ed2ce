package openstack_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// capped is the real Nova, which refuses the microversions that a release does not have.
func capped(t *testing.T, nova string, limit int) string {
	t.Helper()
	to, err := url.Parse(nova)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if minor, _ := strconv.Atoi(strings.TrimPrefix(r.Header.Get("X-OpenStack-Nova-API-Version"),
			"2.")); minor > limit {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotAcceptable)
			fmt.Fprintf(w, `{"computeFault":{"message":"maximum is 2.%d"}}`, limit)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL + strings.TrimSuffix(to.Path, "/")
}

// TestActionsOfARealServer: its creation finished after it began, as Nova's list says and as its events say.
func TestActionsOfARealServer(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	server := p.Boot(t, "logged", 1)[0]
	p.Quiet(t, server.ID)
	nova := testkit.Compute(t, p.Login(t)).Endpoint
	logs := map[int][]domain.LoggedAction{}
	for _, limit := range []int{93, 53} { // Zed, and Pike
		keystone := testkit.RedirectTo(t, map[string]string{"compute": capped(t, nova, limit)})
		cloud, err := openstack.New(openstack.Config{AuthURL: keystone.URL(), Interface: "public"}, openstack.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cloud.Close)
		if logs[limit], err = cloud.As(domain.Secret(p.Token(t)), p.ID).Actions(t.Context(), server.ID); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(logs[93], logs[53]); diff != "" || len(logs[93]) != 1 {
		t.Errorf("the events say something else than the list: %s", diff)
	}
	made := logs[93][0]
	if made.Name != "create" || made.Finish.Before(made.Start) { // to the second, so they may be equal
		t.Errorf("the creation has no end: %+v", made)
	}
	h := domain.History{
		ServerID: server.ID, Created: server.Created, Updated: made.Finish, State: domain.StateActive,
		Actions: logs[53],
	}
	if state, known := h.StateAt(made.Start.Add(-time.Second)); known && state == domain.StateActive {
		t.Error("the server counts as running when it was requested")
	}
}

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

func TestLongShelveSnapshotAndImages(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	mine, admin, ctx := p.Session(t), testkit.Session(t, "admin"), t.Context()
	made := p.Boot(t, "kept", 1)[0]
	name := "kept-" + made.ID
	action, of := uuid.New(), domain.Server{ID: made.ID, ProjectID: p.ID}
	id, err := mine.SnapshotServer(ctx, made.ID, name, action)
	if err != nil || id == "" {
		t.Fatal(id, err)
	}
	found, err := mine.Images(ctx, name)
	if err != nil || len(found) != 1 || found[0].ID != id || found[0].Status == "" {
		t.Fatal(found, err)
	}
	if found, err := mine.ImagesOf(ctx, action, of); err != nil || len(found) != 1 || found[0].ID != id {
		t.Errorf("by its action: %v %v", found, err)
	}
	if found, err := mine.ImagesOf(ctx, uuid.New(), of); err != nil || len(found) != 0 {
		t.Errorf("another action: %v %v", found, err)
	}
	for what, server := range map[string]domain.Server{
		"another server": {ID: uuid.NewString(), ProjectID: p.ID}, "another project": {ID: made.ID, ProjectID: "other"},
	} {
		if found, err := admin.ImagesOf(ctx, action, server); err != nil || len(found) != 0 {
			t.Errorf("%s: %v %v", what, found, err)
		}
	}
	p.Quiet(t, made.ID)
	p.DeleteImages(t)
	if err := mine.ShelveServer(ctx, made.ID); err != nil {
		t.Fatal(err)
	}
	p.Await(t, made.ID, "SHELVED_OFFLOADED") // the sandbox offloads immediately
	if err := admin.OffloadServer(ctx, made.ID); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("offloaded twice: %v", err)
	}
	if err := mine.ShelveServer(ctx, made.ID); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("shelved twice: %v", err)
	}
}

// TestLongEndOfServers: a server that an admin has locked is not its owner's to change; one in RESCUE or ERROR becomes
// active.
func TestLongEndOfServers(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	mine, admin, ctx := p.Session(t), testkit.Session(t, "leases"), t.Context()
	id := p.Boot(t, "locked", 1)[0].ID
	if err := admin.LockServer(ctx, id); err != nil {
		t.Fatal(err)
	}
	if found, err := admin.Server(ctx, id); err != nil || !found.Locked {
		t.Errorf("it is locked: %t, %v", found.Locked, err)
	}
	for what, err := range map[string]error{
		"stop": mine.StopServer(ctx, id), "delete": mine.DeleteServer(ctx, id), "unlock": mine.UnlockServer(ctx, id),
	} {
		if code := apperr.CodeOf(err); code != apperr.Conflict && code != apperr.Forbidden {
			t.Errorf("%s by its owner: %v", what, err)
		}
	}
	if err := errors.Join(admin.UnlockServer(ctx, id), mine.StopServer(ctx, id)); err != nil {
		t.Errorf("unlocked: %v", err)
	}
	p.Await(t, id, "SHUTOFF")
	testkit.OpenStack(t, "admin", "server", "set", "--state", "error", id)
	if err := admin.ResetServer(ctx, id); err != nil {
		t.Error(err)
	}
	p.Await(t, id, "ACTIVE")
	testkit.OpenStack(t, "admin", "server", "rescue", id)
	p.Await(t, id, "RESCUE")
	if err := admin.UnrescueServer(ctx, id); err != nil {
		t.Error(err)
	}
	p.Await(t, id, "ACTIVE")
}
