package contract_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const exampleFloatingIP = "7c1a2f0e-3d54-4b8e-9a61-0f2d5c7b8e93" // in http.yaml

// Neutron has the floating IPs, and no table of ours a row of them.
var _ = addNoun(noun{example: exampleFloatingIP, row: "select 1", story: (*story).floatingIPStory})

// floatingIPStory is the life of a floating IP, and of one at a server.
func (s *story) floatingIPStory(t *testing.T) {
	routed := s.project.RoutedNetwork(t, "of-floating-ips", "10.51.0.0/24")
	key := []string{"Idempotency-Key", uuid.NewString()}
	s.is(exampleFloatingIP, s.id(t, "createFloatingIP", 201, variant{example: "any", header: key}))
	testkit.LeaveRequests(t, s.conn, testkit.AtWork)
	s.ok(t, "createFloatingIP", 409, variant{example: "any", header: key})
	s.ok(t, "listFloatingIPs", 200, variant{query: []string{"limit=1", "address", "attached=false"}})
	s.ok(t, "getFloatingIP", 200, variant{})

	server := s.project.BootOn(t, "with-floating-ip", routed.NetworkID)
	s.is(exampleServer, server)
	s.ok(t, "attachFloatingIP", 201, variant{example: "existing"})
	s.ok(t, "attachFloatingIP", 200, variant{example: "existing"})
	s.ok(t, "listServerFloatingIPs", 200, variant{})
	s.ok(t, "deleteFloatingIP", 409, variant{})
	s.is(exampleServer, s.project.Boot(t, "without-address", 1)[0].ID)
	s.ok(t, "attachFloatingIP", 409, variant{example: "existing"})
	s.is(exampleServer, server)
	s.ok(t, "detachFloatingIP", 204, variant{})
	s.ok(t, "deleteFloatingIP", 204, variant{})
}
