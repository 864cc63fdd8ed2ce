package contract_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// keyed sends keys that belong to other requests, and one whose request is in progress.
func (s *story) keyed(t *testing.T) {
	taken, busy := []string{"Idempotency-Key", uuid.NewString()}, []string{"Idempotency-Key", uuid.NewString()}
	first := s.ok(t, "createCallback", 201, ask{example: "project", header: taken})
	again := s.ok(t, "createCallback", 201, ask{example: "project", header: taken})
	if string(first.Body) != string(again.Body) || again.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("got %s, and then %s %v", first.Body, again.Body, again.Header)
	}
	count := 0
	for id, o := range s.operations {
		if slices.ContainsFunc(o.params, func(p *openapi3.Parameter) bool { return p.Name == taken[0] }) {
			s.ok(t, id, 422, ask{header: taken})
			count++
		}
	}
	if count < 10 {
		t.Errorf("%d operations take a key", count)
	}
	none := fmt.Sprintf(`{"action": "start", "ids": [%q]}`, uuid.NewString())
	s.ok(t, "actOnServers", 200, ask{body: none, header: busy})
	testkit.LeaveRequests(t, s.conn, testkit.AtWork)
	s.ok(t, "actOnServers", 409, ask{body: none, header: busy})
}
