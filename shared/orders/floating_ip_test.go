package orders

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// EnsureFloatingIP gives a server an address, which Nova then shows.
func (d *fakeBackend) EnsureFloatingIP(
	_ context.Context, id string, a domain.FloatingIPAttach,
) (f domain.FloatingIP, isChanged bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f = domain.FloatingIP{ID: "ip of " + id, Address: "203.0.113.7", Description: a.Description}
	f.UpdatedAt = time.Time{}.Add(-time.Hour) // Nova had time to show it
	if err := d.call("floating"); err != nil {
		return domain.FloatingIP{}, false, err
	}
	if d.marks == nil {
		d.marks = map[string]string{}
	}
	if isChanged = d.marks[a.Description] == ""; isChanged {
		d.marks[a.Description] = id
	}
	return f, isChanged, nil
}

func (d *fakeBackend) ReleaseFloatingIPs(_ context.Context, _, mark string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("release"); err != nil {
		return err
	}
	delete(d.marks, mark)
	return nil
}

func (d *fakeBackend) RecordFloatingIP(
	_ context.Context, _ domain.Order, _ domain.Claim, instance uuid.UUID, f domain.InstanceFloatingIP,
) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.onRecord != nil {
		d.onRecord()
	}
	if err := d.call("record address"); err != nil {
		return err
	}
	for n := range d.order.Instances {
		if d.order.Instances[n].ID == instance {
			d.order.Instances[n].FloatingIP = &f
		}
	}
	return nil
}

// TestFloatingIPsAreGiven: the step is taken once for each server, again after a lost answer, and again when it worked
// but that was not stored. What Neutron rejects for good is the instance's failure.
func TestFloatingIPsAreGiven(t *testing.T) {
	t.Parallel()
	down, late := apperr.New(apperr.Unavailable, "no"), apperr.New(apperr.Timeout, "no")
	full, taken := apperr.New(apperr.Quota, "no"), apperr.New(apperr.Conflict, "no")
	forbidden := apperr.New(apperr.Forbidden, "no")
	for name, tc := range map[string]struct {
		once, rejects   map[string]error
		given, recorded int
		status          domain.OrderStatus
	}{
		"all is well":     {nil, nil, 2, 2, domain.OrderDone},
		"neutron is down": {map[string]error{"floating": down}, nil, 3, 2, domain.OrderDone},
		"no answer":       {map[string]error{"floating": late}, nil, 3, 2, domain.OrderDone},
		"it was not stored": {
			map[string]error{"record address": down},
			nil, 3, 3,
			domain.OrderDone,
		},
		"one over the quota": {map[string]error{"floating": full}, nil, 2, 2, domain.OrderPartial},
		"no router":          {nil, map[string]error{"floating": taken}, 2, 2, domain.OrderFailed},
		"forbidden":          {nil, map[string]error{"floating": forbidden}, 2, 0, domain.OrderRunning},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &fakeBackend{once: tc.once, rejects: tc.rejects, floating: &domain.ServerFloatingIP{}}
			status, err := d.work(t, domain.OrderSpec{FloatingIPs: true}, nil)
			given, recorded := count(d.calls, "floating"), count(d.calls, "record address")
			if status != tc.status || given != tc.given || recorded != tc.recorded {
				t.Errorf("the order is %s, got %v, after %v", status, err, d.calls)
			}
		})
	}
}

func count(calls []string, name string) (n int) {
	for _, call := range calls {
		if call == name {
			n++
		}
	}
	return n
}

// TestFloatingIPsOfRollback: nothing that was made for the order is left, recorded or not, also when what fails is the
// floating IP of another server.
func TestFloatingIPsOfRollback(t *testing.T) {
	t.Parallel()
	for name, once := range map[string]map[string]error{
		"recorded":     nil,
		"not recorded": {"record address": apperr.New(apperr.Unavailable, "down")},
		"over quota":   {"floating": apperr.New(apperr.Quota, "no")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &fakeBackend{once: once, floating: &domain.ServerFloatingIP{}}
			if name != "over quota" {
				d.onRecord = func() { d.servers[1].Status = "ERROR" }
			}
			status, err := d.work(t, domain.OrderSpec{FloatingIPs: true, OnFailure: domain.Rollback}, nil)
			if status != domain.OrderRolledBack || err != nil || len(d.marks) != 0 {
				t.Errorf("the order is %s, got %v, left %v, after %v", status, err, d.marks, d.calls)
			}
			if at := slices.Index(d.calls, "delete"); at >= 0 && !slices.Contains(d.calls[:at], "release") {
				t.Errorf("a server was deleted first: %v", d.calls)
			}
		})
	}
}

// TestFloatingIPThatExisted is not released by a rollback, and a plain order makes no call for one.
func TestFloatingIPThatExisted(t *testing.T) {
	t.Parallel()
	d := &fakeBackend{floating: &domain.ServerFloatingIP{Address: "203.0.113.7"}}
	d.onRecord = func() { d.servers[1].Status = "ERROR" }
	status, err := d.work(t, domain.OrderSpec{FloatingIPs: true, OnFailure: domain.Rollback}, nil)
	if status != domain.OrderRolledBack || err != nil || count(d.calls, "release") != 0 {
		t.Errorf("the order is %s, got %v, after %v", status, err, d.calls)
	}
	plain := &fakeBackend{}
	status, err = plain.work(t, domain.OrderSpec{}, nil)
	if status != domain.OrderDone || err != nil || count(plain.calls, "floating")+count(plain.calls, "release") != 0 {
		t.Errorf("a plain order is %s, got %v, after %v", status, err, plain.calls)
	}
}
