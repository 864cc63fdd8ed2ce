package contract_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// connections: the caller may act through what it has delegated.
func (s *story) connections(t *testing.T) {
	until := map[string]any{
		"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "actions": []string{
			"allocate", "connect", "deallocate",
		},
	}
	limited := map[string]any{
		"expires_at": until["expires_at"], "usable_by": []any{map[string]string{"project": s.project.Name}},
	}
	s.ok(t, "createConnection", 201, variant{example: "limited", set: limited})
	s.is(exampleConnection, s.id(t, "createConnection", 201, variant{example: "trust", set: until}))
	s.ok(t, "getConnection", 200, variant{})
	s.ok(t, "listConnections", 200, variant{query: []string{"limit=1", "status"}})
	s.ok(t, "checkConnection", 200, variant{})
	s.ok(t, "listResources", 200, variant{query: []string{"connection_id"}})
	testkit.Eventually(t, time.Minute, "no check is under way", func() bool { // one that ends later would be the answer
		return testkit.Scalar[bool](t, s.conn,
			"select bool_and(next_check_at > now() and coalesce(check_until, '-infinity') < now()) from connections")
	})
	s.exec(t, "update connections set check_until = now() + interval '1 minute'") // as if another replica were at it
	s.ok(t, "checkConnection", 202, variant{})
	s.ok(t, "suspendConnection", 200, variant{})
	s.ok(t, "resumeConnection", 200, variant{})
	later := map[string]any{"expires_at": time.Now().Add(2 * time.Hour).UTC().Format(time.RFC3339)}
	s.ok(t, "changeConnection", 200, variant{example: "longer", set: later})
	s.ok(t, "changeConnection", 412, variant{example: "longer", set: later, header: []string{"If-Match", `"1"`}})
	var taken struct {
		ID       string
		ActionID string `json:"action_id"`
	}
	s.ok(t, "connectServer", 202, variant{example: "delegated"}).JSON(t, &taken)
	s.is(exampleAction, taken.ActionID)
	testkit.Eventually(t, 2*time.Minute, "the server is adopted", func() bool {
		answer := s.ok(t, "getServerAction", 200, variant{query: []string{"connection_id"}})
		return !strings.Contains(string(answer.Body), `"running"`)
	})
	s.ok(t, "changeServer", 200, variant{example: "reusable"})
	s.ok(t, "deleteServer", 202, variant{query: []string{"connection_id", "force=true"}})
	s.exec(t, `insert into connections
		select (jsonb_populate_record(c, jsonb_build_object('id', gen_random_uuid()))).* from connections c, generate_series(1, 100)`)
	s.ok(t, "createConnection", 409, variant{example: "trust", set: until})
	s.exec(t, "update connections set lease_id = gen_random_uuid() where status = 'active'")
	s.ok(t, "deleteConnection", 409, variant{})
	s.exec(t, "update connections set lease_id = null")
	s.strayRevocation(t)
	s.ok(t, "deleteConnection", 204, variant{}) // it wakes run-connections
	for _, change := range []string{"changeConnection", "suspendConnection", "resumeConnection"} {
		s.ok(t, change, 409, variant{})
	}
	testkit.Eventually(t, 2*time.Minute, "the revocation is pending", func() bool {
		return testkit.Scalar[bool](t, s.conn, "select exists (select from events where type = $1)",
			domain.RevocationEvent)
	})
}

// strayRevocation stores a deleted connection whose trust Keystone lets no one delete, because its user is disabled.
func (s *story) strayRevocation(t *testing.T) {
	t.Helper()
	giver := testkit.BorrowProject(t)
	trust := giver.Trust(t, testkit.Trustee(t), true, time.Now().Add(time.Hour))
	giver.Disable(t)
	s.exec(t, `insert into connections select (jsonb_populate_record(c, jsonb_build_object(
		'id', gen_random_uuid(), 'delegation_id', $1::text, 'status', 'deleted', 'revoked', false))).*
		from connections c limit 1`, trust)
}

// strayTrust stores a connection by trust, and says what stands for that of the examples.
func strayTrust(t *testing.T, database string, project *testkit.Project) *strings.Replacer {
	t.Helper()
	id := uuid.NewString()
	if _, err := testkit.Pool(t, database).Exec(t.Context(), `
insert into connections (project_id, id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status, expires_at)
values ($1, $2, '', $3, 'trust', 't', '{"roles": ["member"]}', '{start}', '{}', 'active', now() + interval '1 hour')`, project.ID, id, project.UserID); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(exampleConnection, id)
}

// consent: the project asks itself for connections.
func (s *story) consent(t *testing.T) {
	to := variant{set: map[string]any{"project_id": s.project.ID}}
	s.is(exampleRequest, s.id(t, "requestConnection", 201, to))
	s.ok(t, "getConnectionRequest", 200, variant{})
	s.ok(t, "listConnectionRequests", 200, variant{query: []string{"limit=1", "status"}})
	s.ok(t, "grantConnectionRequest", 201, variant{example: "all"})
	s.ok(t, "grantConnectionRequest", 200, variant{example: "all"})
	for operation, example := range map[string]string{
		"grantConnectionRequest": "less", "declineConnectionRequest": "reason", "withdrawConnectionRequest": "",
	} {
		s.ok(t, operation, 409, variant{example: example})
	}
	s.is(exampleRequest, s.id(t, "requestConnection", 201, to))
	s.ok(t, "declineConnectionRequest", 200, variant{})
	s.is(exampleRequest, s.id(t, "requestConnection", 201, to))
	s.exec(t, `insert into connection_requests
		select (jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid()))).*
		from connection_requests r, generate_series(1, 20) where status = 'pending'`)
	s.ok(t, "requestConnection", 409, to)
	s.ok(t, "withdrawConnectionRequest", 204, variant{})
}
