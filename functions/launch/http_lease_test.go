package launch

import (
	"encoding/json"
	"testing"
)

// TestLeaseHints: a lease that is given as scheduler hints is the same order as one with a block, and Nova gets its
// other hints alone.
func TestLeaseHints(t *testing.T) {
	t.Parallel()
	order := func(body string) createOrder {
		var in launchRequest
		if err := json.Unmarshal([]byte(body), &in); err != nil {
			t.Fatal(err)
		}
		req, wrong := in.order()
		if len(wrong) > 0 {
			t.Fatal(wrong)
		}
		return req
	}
	const rest = `"name": "web", "flavor": "f", "image": "i", "networks": ["n"]`
	block := order(`{` + rest + `, "scheduler_hints": {"same_host": "s"},
		"lease": {"name": "course", "start": "2099-01-01T00:00:00Z", "end": "2099-01-02T00:00:00Z"}}`)
	hints := order(`{` + rest + `, "scheduler_hints": {"same_host": "s", "lease_name": "course",
		"lease_start": "2099-01-01T00:00:00Z", "lease_end": "2099-01-02T00:00:00Z"}}`)
	if block.hash != hints.hash || hints.lease.Terms() != block.lease.Terms() || hints.lease.Name != "course" {
		t.Errorf("got the lease %+v %x, want %+v %x", hints.lease, hints.hash, block.lease, block.hash)
	}
	if got := hints.items[0].spec.Hints; len(got) != 1 || got["same_host"] != "s" {
		t.Errorf("Nova gets the hints %v", got)
	}
}
