package contract_test

import "testing"

// consent: the project asks itself for connections.
func (s *story) consent(t *testing.T) {
	to := ask{set: map[string]any{"project_id": s.project.ID}}
	s.is(exampleRequest, s.id(t, "requestConnection", 201, to))
	s.ok(t, "getConnectionRequest", 200, ask{})
	s.ok(t, "listConnectionRequests", 200, ask{query: []string{"limit=1", "status"}})
	s.ok(t, "grantConnectionRequest", 201, ask{example: "all"})
	s.ok(t, "grantConnectionRequest", 200, ask{example: "all"})
	for operation, example := range map[string]string{
		"grantConnectionRequest": "less", "declineConnectionRequest": "reason", "withdrawConnectionRequest": "",
	} {
		s.ok(t, operation, 409, ask{example: example})
	}
	s.is(exampleRequest, s.id(t, "requestConnection", 201, to))
	s.ok(t, "declineConnectionRequest", 200, ask{})
	s.is(exampleRequest, s.id(t, "requestConnection", 201, to))
	s.exec(t, `insert into connection_requests
		select (jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid()))).*
		from connection_requests r, generate_series(1, 20) where status = 'pending'`)
	s.ok(t, "requestConnection", 409, to)
	s.ok(t, "withdrawConnectionRequest", 204, ask{})
}
