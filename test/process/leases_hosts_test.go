package process_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// admin is what the openstack client of an admin shows.
func admin(t *testing.T) *openstack.Session { t.Helper(); return testkit.Session(t, "admin") }

// reserve makes hosts reservable as an admin does it, and waits until they are.
func (l *lessee) reserve(t *testing.T, hosts ...string) {
	t.Helper()
	for _, name := range hosts {
		if _, err := l.conn.Exec(t.Context(), "insert into nodes (name, pool) values ($1, 'joining')", name); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, 3*time.Minute, "the hosts are reservable", func() bool {
		l.tick()
		return testkit.Scalar[int](t, l.conn, "select count(*)::int from nodes where pool = 'reservable'") == len(hosts)
	})
}

// leftOf lists what Nova and Placement still have of a reservation.
func (l *lessee) leftOf(t *testing.T, reservation string, flavors ...string) (left []string) {
	t.Helper()
	id, session := uuid.MustParse(reservation), admin(t)
	trait := testkit.Scalar[string](t, l.conn, "select trait from reservations where id = $1", reservation)
	aggregates, err := session.Aggregates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range aggregates {
		if a.Name == leases.AggregateName(id) {
			left = append(left, "aggregate "+a.Name)
		}
	}
	if err := session.DeleteTrait(t.Context(), trait); err != nil { // in use
		left = append(left, err.Error())
	}
	for _, host := range hostsOf(t, session) {
		if slices.Contains(testkit.ProviderTraits(t, host.ProviderID), trait) {
			left = append(left, "the trait of "+host.Name)
		}
	}
	all := testkit.OpenStack(t, "admin", "flavor", "list", "--all", "-f", "value", "-c", "ID")
	for _, f := range flavors {
		if strings.Contains(all, f) {
			left = append(left, "flavor "+f)
		}
	}
	return left
}

func hostsOf(t *testing.T, session *openstack.Session) []domain.ComputeHost {
	t.Helper()
	hosts, err := session.ComputeHosts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return hosts
}

// keepLaunching has each project launch one server after the other, without the reservation, until stop is called.
func keepLaunching(t *testing.T, projects ...*testkit.Project) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	s := testkit.Sandbox(t)
	for _, p := range projects {
		session := p.Session(t)
		all.Go(func() {
			launched := 0
			for ; ctx.Err() == nil || launched == 0; launched++ {
				id, err := session.CreateServer(t.Context(), domain.LaunchSpec{
					FlavorID: s.FlavorID, ImageID: s.ImageID, NetworkIDs: []string{s.NetworkID},
				}, "unreserved", "", nil)
				for isBuilding := err == nil; isBuilding; {
					var server domain.Server
					server, err = session.Server(t.Context(), id)
					isBuilding = err == nil && server.Status == "BUILD" && flow.Sleep(t.Context(), time.Second)
					if server.Status == "ERROR" {
						err = fmt.Errorf("it is in ERROR: %v", server.Fault)
					}
				}
				if err != nil {
					t.Errorf("a launch without the reservation: %v", err)
					return
				}
			}
			t.Logf("%s launched %d servers without the reservation", p.Name, launched)
		})
	}
	return func() { cancel(); all.Wait() }
}

// delegate makes a connection for launches with an application credential, and returns its id.
func (l *lessee) delegate(t *testing.T) string {
	t.Helper()
	id, secret := l.AppCredential(t)
	end := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	made := l.client().Post(t, "/v1/connections", fmt.Sprintf(`{"kind": "application_credential", "id": %q, "secret": %q,
		"actions": ["allocate", "start"], "expires_at": %q}`, id, secret, end))
	if made.Status != http.StatusCreated {
		t.Fatalf("a connection: %d %s", made.Status, made.Body)
	}
	var c struct{ ID string }
	made.JSON(t, &c)
	return c.ID
}

// TestLongHostLease: only launches with the reservation get onto the host, also by a connection, while its project and
// another one keep launching without it. At the end its servers are deleted, also one that no host took, and nothing of
// the reservation is left.
func TestLongHostLease(t *testing.T) {
	t.Parallel()
	hosts := testkit.ReservableHosts(t)
	l := newLessee(t, nil)
	l.reserve(t, hosts...)
	testkit.Eventually(t, 3*time.Minute, "the isolation is tested", func() bool {
		l.tick()
		return testkit.Scalar[int](t, l.conn, "select count(*)::int from isolation where result = 'proven'") == 1
	})
	lease := l.lease(t, fmt.Sprintf(`{"name": "workshop", "duration": "PT1H", "on_end": "delete",
		"reservations": [{"type": "host", "min": 1, "flavors": [%q]}]}`, testkit.Sandbox(t).Flavor))
	active := l.becomes(t, lease.ID, domain.LeaseActive)
	reservation := active.Reservations[0]
	stop := keepLaunching(t, l.Project, testkit.NewProject(t))
	_, inside := l.launch(t, fmt.Sprintf(`, "reservation_id": %q`, reservation.ID))
	_, delegated := l.launch(t, fmt.Sprintf(`, "reservation_id": %q, "connection_id": %q`, reservation.ID, l.delegate(t)))
	_, outside := l.launch(t, "")
	impossible := l.MakeImage(t, "impossible", map[string]string{"trait:HW_CPU_X86_AVX512F": "required"})
	failed, err := l.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
		FlavorID: reservation.Flavors[0].ID, ImageID: impossible, NetworkIDs: []string{testkit.Sandbox(t).NetworkID},
	}, "failed", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Await(t, failed, "ERROR") // it never gets a host
	stop()
	node := testkit.Scalar[string](t, l.conn, "select node from allocations")
	on, err := admin(t).HostServers(t.Context(), node)
	names := []string{}
	for _, s := range on {
		names = append(names, s.ID)
	}
	slices.Sort(names)
	if want := slices.Sorted(slices.Values([]string{inside, delegated})); err != nil || !slices.Equal(names, want) {
		t.Errorf("on %s are %v: %v; %s should be", node, names, err, want)
	}
	l.at(t, lease.ID, "ends_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseEnded)
	if left := l.leftOf(t, reservation.ID, reservation.Flavors[0].ID); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	ids := []string{}
	for _, s := range l.Servers(t) {
		ids = append(ids, s.ID)
	}
	if slices.Contains(ids, inside) || slices.Contains(ids, delegated) || slices.Contains(ids, failed) ||
		!slices.Contains(ids, outside) {
		t.Errorf("the servers are %v: want %s, not %s, %s and %s", ids, outside, inside, delegated, failed)
	}
}

// TestLongServersAfterHostLease: at the end of a reservation of a host a server is shelved, and starts again on an
// ordinary host. One that Nova cannot move is shelved as it is. A server of a lease that deletes is an image that its
// project sees and launches from.
func TestLongServersAfterHostLease(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	hosts := testkit.ReservableHosts(t)
	l := newLessee(t, nil)
	t.Cleanup(func() { l.DeleteImages(t) })
	l.reserve(t, hosts...)
	s, gone, narrow := testkit.Sandbox(t), l.PrivateFlavor(t), l.PrivateFlavor(t)
	made, instances, servers := map[string]shownLease{}, map[string]string{}, map[string]string{}
	for _, onEnd := range []string{"shelve", "snapshot_delete"} {
		lease := l.lease(t, fmt.Sprintf(`{"name": %q, "duration": "PT1H", "on_end": %q, "reservations": [{"type": "host",
			"min": 1, "flavors": [%q, %q, %q]}]}`, onEnd, onEnd, s.FlavorID, gone, narrow))
		made[onEnd] = l.becomes(t, lease.ID, domain.LeaseActive)
		instances[onEnd], servers[onEnd] = l.launch(t,
			fmt.Sprintf(`, "reservation_id": %q`, made[onEnd].Reservations[0].ID))
	}
	kept := []string{}
	for _, f := range made["shelve"].Reservations[0].Flavors[1:] {
		id, err := l.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
			FlavorID: f.ID, ImageID: s.ImageID, NetworkIDs: []string{s.NetworkID},
		}, "kept", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		l.Await(t, id, "ACTIVE")
		kept = append(kept, id)
	}
	if err := admin(t).DeleteFlavor(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	testkit.RequireTrait(t, narrow, "HW_CPU_X86_AVX512F") // which no host has
	for _, lease := range made {
		l.at(t, lease.ID, "ends_at = clock_timestamp()")
	}
	for onEnd, lease := range made {
		l.becomes(t, lease.ID, domain.LeaseEnded)
		reservation := lease.Reservations[0]
		if left := l.leftOf(t, reservation.ID, reservation.Flavors[0].ID); len(left) > 0 {
			t.Errorf("%s: left are %v", onEnd, left)
		}
	}
	for _, id := range append(kept, servers["shelve"]) {
		l.Await(t, id, "SHELVED_OFFLOADED")
	}
	started := l.client().Post(t, "/v1/servers/"+instances["shelve"]+"/actions", `{"action": "start"}`)
	if started.Status != http.StatusAccepted {
		t.Errorf("start: %d %s", started.Status, started.Body)
	}
	l.Await(t, servers["shelve"], "ACTIVE")
	for _, host := range hosts {
		if on, err := admin(t).HostServers(t.Context(), host); err != nil || len(on) > 0 {
			t.Errorf("on %s are %v: %v", host, on, err)
		}
	}
	if found, err := admin(t).Server(t.Context(), servers["shelve"]); err != nil || found.Flavor.Name != s.Flavor {
		t.Errorf("the server is %+v: %v", found, err)
	}

	l.Await(t, servers["snapshot_delete"], "DELETED")
	images, err := l.Session(t).Images(t.Context(), "leased-"+made["snapshot_delete"].ID)
	if err != nil || len(images) != 1 || images[0].Status != "active" {
		t.Fatalf("the images of the deleted server are %+v: %v", images, err)
	}
	id, err := l.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
		FlavorID: s.FlavorID, ImageID: images[0].ID, NetworkIDs: []string{s.NetworkID},
	}, "again", "", nil)
	if err != nil {
		t.Fatalf("a launch from the image: %v", err)
	}
	l.Await(t, id, "ACTIVE")
}

// TestLongImageWithTrait: Nova takes required traits from images, too. An image gets no server onto an idle host of
// the pool, whether it requires the trait that was public once or for what the flavor of a reservation shows. One with
// the trait of a reservation gets its project's servers onto the host that it has reserved, until the lease ends.
func TestLongImageWithTrait(t *testing.T) {
	t.Parallel()
	hosts := testkit.ReservableHosts(t)
	l := newLessee(t, nil)
	l.reserve(t, hosts...)
	active := l.becomes(t, l.reserveHost(t).ID.String(), domain.LeaseActive)
	shown, err := l.Session(t).FlavorSpecs(t.Context(), active.Reservations[0].Flavors[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	learned := map[string]string{}
	for spec, value := range shown {
		if !strings.HasPrefix(spec, "trait:CUSTOM_CLOUDFN_LEASE_") { // which gets onto the host that it has reserved
			learned[spec] = value
		}
	}
	for name, properties := range map[string]map[string]string{
		"public": {"trait:CUSTOM_CLOUDFN_RESERVABLE": "required"}, "learned": learned,
	} {
		if len(properties) == 0 {
			continue // the flavor shows nothing else
		}
		image := l.MakeImage(t, name, properties)
		id, err := l.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
			FlavorID: testkit.Sandbox(t).FlavorID, ImageID: image, NetworkIDs: []string{testkit.Sandbox(t).NetworkID},
		}, name, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, 2*time.Minute, "Nova has decided", func() bool {
			server, err := admin(t).Server(t.Context(), id)
			if err == nil && server.Status == "ACTIVE" {
				t.Errorf("%s with %v is on a host of the pool", name, properties)
			}
			return err == nil && server.Status != "BUILD"
		})
	}
	l.endsWithLease(t, active)
	for _, host := range hosts {
		if on, err := admin(t).HostServers(t.Context(), host); err != nil || len(on) > 0 {
			t.Errorf("on %s are %+v: %v", host, on, err)
		}
	}
}

// endsWithLease checks that a server of an image with the trait of a reservation ends with the lease, and that after it
// the host is reservable, and the image gets no server anywhere.
func (l *lessee) endsWithLease(t *testing.T, active shownLease) {
	t.Helper()
	r, s := active.Reservations[0], testkit.Sandbox(t)
	trait := testkit.Scalar[string](t, l.conn, "select trait from reservations where id = $1", r.ID)
	host := testkit.Scalar[string](t, l.conn, "select node from allocations where released_at is null")
	// Only then the server is the reservation's: Nova's times are whole seconds.
	testkit.Eventually(t, time.Minute, "the isolation was proven before the server comes", func() bool {
		return testkit.Scalar[bool](t, l.conn,
			"select exists (select from isolation where proven_since < clock_timestamp() - interval '1 second')")
	})
	image := l.MakeImage(t, "reserved", map[string]string{"trait:" + trait: "required"})
	create := func() (string, error) {
		return l.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
			FlavorID: s.FlavorID, ImageID: image, NetworkIDs: []string{s.NetworkID},
		}, "reserved", "", nil)
	}
	id, err := create()
	if err != nil {
		t.Fatal(err)
	}
	l.Await(t, id, "ACTIVE")
	if server, err := admin(t).Server(t.Context(), id); err != nil || server.Host != host {
		t.Fatalf("it is on %q, not %s: %v", server.Host, host, err)
	}
	l.at(t, active.ID, "ends_at = clock_timestamp()")
	l.becomes(t, active.ID, domain.LeaseEnded)
	if left := l.leftOf(t, r.ID, r.Flavors[0].ID); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	if n := testkit.Scalar[int](t, l.conn, "select count(*)::int from nodes where pool not in ('', 'reservable')"); n > 0 {
		t.Errorf("%d hosts are not reservable", n)
	}
	id, err = create()
	t.Logf("after the lease: %v", err)
	if err == nil {
		l.Await(t, id, "ERROR")
	}
}
