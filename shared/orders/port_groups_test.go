package orders

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// SetNetworkGroups finds no ports of a server that is being built, which is ready afterwards.
func (d *fakeBackend) SetNetworkGroups(_ context.Context, id string, _ []domain.Attachment) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.call("groups")
	for n, s := range d.servers {
		if s.ID == id && s.Status == "BUILD" {
			d.servers[n].Status = "ACTIVE"
			return false, err
		}
	}
	return !d.isDetached, err
}

func (d *fakeBackend) RecordGroups(
	_ context.Context, _ domain.Order, _ domain.Claim, instance uuid.UUID, g domain.PortGroups,
) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("record groups"); err != nil {
		return err
	}
	for n := range d.order.Instances {
		if d.order.Instances[n].ID == instance {
			d.order.Instances[n].PortGroups = &g
		}
	}
	return nil
}

// TestNetworkGroupsAreSet: the step is taken once for each server, again after a lost answer, and again when it worked
// but that was not stored. A port that someone has taken from the server is not waited for. What Neutron rejects for
// good is the instance's failure. No floating IP leads to a port before.
func TestNetworkGroupsAreSet(t *testing.T) {
	t.Parallel()
	down, changed := apperr.New(apperr.Unavailable, "no"), apperr.New(apperr.Precondition, "no")
	absent, forbidden := apperr.New(apperr.NotFound, "no"), apperr.New(apperr.Forbidden, "no")
	for name, tc := range map[string]struct {
		once, rejects map[string]error
		isDetached    bool
		created       string // the servers' first status
		set, recorded int
		status        domain.OrderStatus
	}{
		"all is well":             {nil, nil, false, "", 2, 2, domain.OrderDone},
		"a port is taken from it": {nil, nil, true, "", 2, 2, domain.OrderDone},
		"its ports come late":     {nil, nil, false, "BUILD", 4, 2, domain.OrderDone},
		"neutron is down":         {map[string]error{"groups": down}, nil, false, "", 3, 2, domain.OrderDone},
		"Nova changes the port":   {map[string]error{"groups": changed}, nil, false, "", 3, 2, domain.OrderDone},
		"it was not stored":       {map[string]error{"record groups": down}, nil, false, "", 3, 3, domain.OrderDone},
		"one lost its group":      {map[string]error{"groups": absent}, nil, false, "", 2, 2, domain.OrderPartial},
		"the group is deleted":    {nil, map[string]error{"groups": absent}, false, "", 2, 2, domain.OrderFailed},
		"forbidden":               {nil, map[string]error{"groups": forbidden}, false, "", 2, 0, domain.OrderRunning},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &fakeBackend{
				once: tc.once, rejects: tc.rejects, isDetached: tc.isDetached, created: tc.created,
				floating: &domain.ServerFloatingIP{},
				attached: []domain.Attachment{{NetworkID: "n", SecurityGroups: []string{"g"}}},
			}
			status, err := d.work(t, domain.OrderSpec{SetsGroups: true, FloatingIPs: true}, nil)
			set, recorded := count(d.calls, "groups"), count(d.calls, "record groups")
			if status != tc.status || set != tc.set || recorded != tc.recorded {
				t.Errorf("the order is %s, got %v, after %v", status, err, d.calls)
			}
			for _, i := range d.order.Instances {
				hasGroups := i.PortGroups != nil && i.PortGroups.Problem == nil
				if _, hasAddress := d.marks[domain.FloatingIPMark(i.ID)]; hasAddress != hasGroups {
					t.Errorf("has an address: %t, has its groups: %t, after %v", hasAddress, hasGroups, d.calls)
				}
			}
		})
	}
}
