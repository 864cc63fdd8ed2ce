package process_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongImageWithTrait: Nova takes required traits from images, too. An image gets no server onto an idle host of
// the pool, whether it asks for the trait that was public once or for what the flavor of a reservation shows. One with
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
