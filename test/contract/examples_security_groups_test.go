package contract_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// What http.yaml names.
const (
	exampleGroup = "c1a3f0d2-5f0e-4b7c-9b7e-2a4d6c8e0f12"
	exampleRule  = "9c1d2e3f-4a5b-4c6d-8e7f-0a1b2c3d4e5f"
	examplePort  = "e7b1c2d3-4f5a-4b6c-8d7e-9f0a1b2c3d4e"
)

// Neutron has the security groups, and no table of ours a row of them.
var _ = addNoun(noun{example: exampleGroup, row: "select 1", story: (*story).securityGroupStory})

// securityGroupStory is the life of a security group, of one at a server, and of an interface.
func (s *story) securityGroupStory(t *testing.T) {
	key := []string{"Idempotency-Key", uuid.NewString()}
	group := s.id(t, "createSecurityGroup", 201, variant{header: key})
	s.is(exampleGroup, group)
	testkit.LeaveRequests(t, s.conn, testkit.AtWork)
	s.ok(t, "createSecurityGroup", 409, variant{header: key})
	s.ok(t, "listSecurityGroups", 200, variant{query: []string{"limit=1", "name"}})
	s.ok(t, "getSecurityGroup", 200, variant{})
	var rule struct{ ID string }
	s.ok(t, "addSecurityGroupRule", 201, variant{example: "https"}).JSON(t, &rule)
	s.is(exampleRule, rule.ID)
	s.ok(t, "addSecurityGroupRule", 200, variant{example: "https"})
	s.ok(t, "addSecurityGroupRule", 201, variant{example: "group"})
	s.ok(t, "addSecurityGroupRule", 201, variant{example: "ping"})
	s.ok(t, "removeSecurityGroupRule", 204, variant{})
	twin := s.id(t, "createSecurityGroup", 201, variant{})
	s.ok(t, "addSecurityGroupRule", 409, variant{example: "group", set: map[string]any{"remote_group": "web"}})
	s.is(exampleGroup, twin)
	s.ok(t, "deleteSecurityGroup", 204, variant{})
	s.is(exampleGroup, group)

	server := s.project.Boot(t, "with-interface", 1)[0].ID
	s.is(exampleServer, server)
	s.ok(t, "listServerInterfaces", 200, variant{})
	network := map[string]any{"network": testkit.Sandbox(t).NetworkID}
	var port struct {
		ID string `json:"port_id"`
	}
	s.ok(t, "addSecurityGroup", 409, variant{example: "all"}) // it has no port
	s.ok(t, "attachInterface", 201, variant{example: "network", set: network}).JSON(t, &port)
	s.is(examplePort, port.ID)
	s.ok(t, "attachInterface", 200, variant{example: "network", set: network})
	s.ok(t, "attachInterface", 200, variant{example: "port"})
	s.ok(t, "addSecurityGroup", 201, variant{example: "one"})
	s.ok(t, "addSecurityGroup", 200, variant{example: "all"})
	s.ok(t, "listServerSecurityGroups", 200, variant{})
	s.ok(t, "listServerInterfaces", 200, variant{})
	s.ok(t, "deleteSecurityGroup", 409, variant{})
	s.ok(t, "removeSecurityGroup", 204, variant{query: []string{"port_id"}})
	other := s.project.Boot(t, "another-interface", 1)[0].ID
	s.is(exampleServer, other)
	s.ok(t, "attachInterface", 409, variant{example: "port"})
	s.is(exampleServer, server)
	s.ok(t, "detachInterface", 204, variant{})
	testkit.Eventually(t, time.Minute, "the interface is detached", func() bool {
		time.Sleep(300 * time.Millisecond)
		return !strings.Contains(string(s.ok(t, "listServerInterfaces", 200, variant{}).Body), port.ID)
	})
	s.ok(t, "deleteSecurityGroup", 204, variant{})
}
