//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDelegation from functions that were at zero: a user delegates by a trust, another project's user orders a server
// through it and sees it active, and when the connection is deleted nothing of it is left in Keystone.
func TestDelegation(t *testing.T) {
	owner, actor, facts := testkit.NewProject(t), testkit.NewProject(t), testkit.Sandbox(t)
	toZero(t, "connections", "launch")
	mine, others := client(t, "gateway", owner.Token(t)), client(t, "gateway", actor.Token(t))

	body, _ := json.Marshal(map[string]any{
		"kind": "trust", "roles": []string{"member"}, "actions": []string{"allocate", "start"},
		"quota":     map[string]int{"instances": 1},
		"usable_by": []string{actor.UserID}, "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
	})
	answer := mine.Post(t, "/v1/connections", string(body))
	if answer.Status != http.StatusCreated {
		t.Fatalf("delegating: %d %s", answer.Status, answer.Body)
	}
	var connection struct{ ID string }
	answer.JSON(t, &connection)
	if given := owner.Trusts(t); len(given) != 1 {
		t.Fatalf("Keystone has the trusts %v", given)
	}

	order, _ := json.Marshal(map[string]any{
		"connection_id": connection.ID, "name": "delegated", "flavor": facts.Flavor, "image": facts.Image,
		"networks": []string{facts.Network},
	})
	began := time.Now()
	if answer = others.Post(t, "/v1/launch", string(order)); answer.Status != http.StatusAccepted {
		t.Fatalf("launch: %d %s", answer.Status, answer.Body)
	}
	var placed struct {
		ID, Status string
		Instances  []struct{ State string }
	}
	answer.JSON(t, &placed)
	path := "/v1/launch/" + placed.ID + "?connection_id=" + connection.ID
	testkit.Eventually(t, 3*time.Minute, "the order is done and its instance active", func() bool {
		others.Get(t, path).JSON(t, &placed)
		return placed.Status == "done" && placed.Instances[0].State == "active"
	})
	t.Logf("active after %s", time.Since(began).Round(100*time.Millisecond))
	if servers := owner.Servers(t); len(servers) != 1 || len(actor.Servers(t)) != 0 {
		t.Errorf("the owner has the servers %v", servers)
	}
	if answer = others.Post(t, "/v1/launch", string(order)); answer.Status != http.StatusForbidden {
		t.Errorf("one more than the quota: %d %s", answer.Status, answer.Body)
	}

	answer = mine.Do(t, http.MethodDelete, "/v1/connections/"+connection.ID, "")
	if answer.Status != http.StatusNoContent {
		t.Fatalf("delete: %d %s", answer.Status, answer.Body)
	}
	if left := owner.Trusts(t); len(left) != 0 {
		t.Errorf("Keystone still has the trusts %v", left)
	}
	if answer = others.Get(t, path); answer.Status != http.StatusNotFound {
		t.Errorf("through the deleted connection: %d %s", answer.Status, answer.Body)
	}
	// The function that guests call does so without Keystone, and knows nothing of a deployment that is not there.
	path = "/v1/agents/" + connection.ID + "/bundle"
	answer = client(t, "agents", "").Get(t, path, "Authorization", "Bearer none")
	if answer.Status != http.StatusNotFound {
		t.Errorf("a bundle that is not there: %d %s", answer.Status, answer.Body)
	}
}
