package openstack

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const router = `{"id":"r","external_gateway_info":{"network_id":"public"}}`

// floatingStub is a Neutron with a server that has one port on a network with a router.
func floatingStub(t *testing.T, routers, floatingIPs string) (*stub, *Session) {
	t.Helper()
	s := newStub(t)
	session := s.offering(t, s.catalog("compute", "network"))
	s.answer("GET /network/v2.0/ports", 200, `{"ports":[
		{"id":"p","device_id":"s1","device_owner":"compute:nova","network_id":"n",
			"fixed_ips":[{"subnet_id":"sub","ip_address":"10.0.0.5"},{"subnet_id":"six","ip_address":"fd00::5"}]},
		{"id":"i","device_id":"r","device_owner":"network:router_interface","network_id":"n",
			"fixed_ips":[{"subnet_id":"sub","ip_address":"10.0.0.1"}]}]}`)
	s.answer("GET /network/v2.0/routers", 200, `{"routers":[`+routers+`]}`)
	s.answer("GET /network/v2.0/subnets", 200,
		`{"subnets":[{"id":"sub","network_id":"n","project_id":"p1","ip_version":4}]}`)
	s.answer("GET /network/v2.0/networks", 200, `{"networks":[{"id":"public","name":"public"}]}`)
	s.answer("GET /network/v2.0/floatingips", 200, `{"floatingips":[`+floatingIPs+`]}`)
	return s, session
}

func (s *stub) changes() (all []*http.Request) {
	for _, call := range s.calls {
		if call.Method != http.MethodGet && strings.HasPrefix(call.URL.Path, "/network/") {
			all = append(all, call)
		}
	}
	return all
}

// TestFloatingIPIsNotTaken: one that is attached elsewhere, also since it was read, is a conflict.
func TestFloatingIPIsNotTaken(t *testing.T) {
	t.Parallel()
	const elsewhere = `{"id":"f","project_id":"p1","floating_ip_address":"203.0.113.7","floating_network_id":"public",
		"port_id":"q","port_details":{"device_id":"s2","device_owner":"compute:nova"}}`
	const free = `{"id":"f","project_id":"p1","floating_ip_address":"203.0.113.7","floating_network_id":"public",
		"port_id":null,"revision_number":3}`
	wanted := domain.FloatingIPAttach{Address: "203.0.113.7"}
	s, session := floatingStub(t, router, elsewhere)
	if _, _, err := session.EnsureFloatingIP(t.Context(), "s1", wanted); apperr.CodeOf(err) != apperr.Conflict ||
		len(s.changes()) != 0 {
		t.Errorf("got %v after %v", err, s.changes())
	}
	s, session = floatingStub(t, router, free)
	s.answer("PUT /network/v2.0/floatingips/f", 412, `{"NeutronError":{"message":"revision"}}`)
	_, _, err := session.EnsureFloatingIP(t.Context(), "s1", wanted)
	if sent := s.changes(); apperr.CodeOf(err) != apperr.Conflict || len(sent) != 1 ||
		sent[0].Header.Get("If-Match") != "revision_number=3" {
		t.Errorf("got %v after %v", err, sent)
	}
}

// TestFloatingIPIsMadeOnce: after a call without an answer the next one finds what it has made.
func TestFloatingIPIsMadeOnce(t *testing.T) {
	t.Parallel()
	s, session := floatingStub(t, router, "")
	s.answer("POST /network/v2.0/floatingips", 503, ``)
	_, _, err := session.EnsureFloatingIP(t.Context(), "s1", domain.FloatingIPAttach{Description: "mark"})
	if sent := s.changes(); apperr.CodeOf(err) != apperr.Unavailable || len(sent) != 1 {
		t.Fatalf("got %v after %v", err, sent)
	}
	body, _ := bodyOf(t, s.changes()[0])["floatingip"].(map[string]any)
	if body["port_id"] != "p" || body["fixed_ip_address"] != "10.0.0.5" || body["floating_network_id"] != "public" ||
		body["description"] != "mark" {
		t.Errorf("sent %v", body)
	}
	s, session = floatingStub(t, router, `{"id":"f","project_id":"p1","floating_network_id":"public","port_id":"p",
		"fixed_ip_address":"10.0.0.5","floating_ip_address":"203.0.113.7"}`)
	f, isChanged, err := session.EnsureFloatingIP(t.Context(), "s1", domain.FloatingIPAttach{})
	if err != nil || isChanged || f.ID != "f" || len(s.changes()) != 0 {
		t.Errorf("got %+v, %t, %v after %v", f, isChanged, err, s.changes())
	}
}

// TestHiddenRouteIsTried: only Neutron knows about routers that are hidden; its 404 is a conflict.
func TestHiddenRouteIsTried(t *testing.T) {
	t.Parallel()
	s, session := floatingStub(t, "", "")
	s.answer("POST /network/v2.0/floatingips", 404, `{"NeutronError":{"message":"External network is not reachable"}}`)
	_, _, err := session.EnsureFloatingIP(t.Context(), "s1", domain.FloatingIPAttach{})
	if apperr.CodeOf(err) != apperr.Conflict || len(s.changes()) != 1 {
		t.Errorf("got %v after %v", err, s.changes())
	}
}
