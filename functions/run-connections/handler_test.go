package runconnections

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestOrderByTrust: the servers are made in the delegating user's project, with resolved names, user_data and key. Then
// every action is done to them.
func TestOrderByTrust(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	secret := testkit.Canary("\x1f\x8b\xff\x00 of " + uuid.NewString()) // no text
	const public = publicKey
	images := []string{w.MakeImage(t, "ubuntu:22.04", nil), w.MakeImage(t, "in:cirros", nil)}
	placed := w.place(t, c, 2, func(o *domain.Order, d *domain.DelegatedOrder) {
		o.Spec.GeneratedKey, d.PublicKey = "made", public
		for n := range o.Instances {
			o.Instances[n].Spec.KeyName, o.Instances[n].KeyName = "made", "made"
		}
		d.Servers[0].Image, d.Servers[1].Image, d.Servers[1].UserData = "ubuntu:22.04", "in:cirros",
			domain.UserData(secret)
	})
	order := w.finish(t, p, placed.ID)
	if order.Status != domain.OrderDone || order.Payload != nil {
		t.Fatalf("the order is %s: %+v", order.Status, order.Instances)
	}
	w.ends(t, order.ID, "running done")
	servers := w.Servers(t)
	if len(servers) != 2 {
		t.Fatalf("the project has %d servers", len(servers))
	}
	for n, i := range order.Instances {
		want := ""
		if n == 1 {
			want = secret
		}
		if got := testkit.UserData(t, i.ServerID); got != want {
			t.Errorf("instance %d: user_data is %q", n, got)
		}
		if i.State != domain.InstanceActive || i.Spec.ImageID != images[n] || i.KeyName != "made" ||
			i.KeyFingerprint != fingerprint(public) {
			t.Errorf("instance %d: %+v", n, i)
		}
		w.ends(t, i.ID, "requested building active")
	}
	if keys := w.KeyPairs(t); !strings.HasPrefix(keys["made"], public) {
		t.Errorf("its key pairs are %v", keys)
	}

	first, second := order.Instances[0], order.Instances[1]
	t.Run("actions", func(t *testing.T) {
		stop, start := w.ask(t, c, first.ID, domain.ActionRequest{Action: domain.Stop}, nil), w.ask(t, c, first.ID,
			domain.ActionRequest{Action: domain.Start}, nil)
		reboot := w.ask(t, c, second.ID, domain.ActionRequest{Action: domain.Reboot, Hard: true}, nil)
		// once it is active, there is nothing to do
		again := w.ask(t, c, second.ID, domain.ActionRequest{Action: domain.Start}, nil)
		nobody := w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
		for a, want := range map[*domain.DelegatedAction]string{
			&stop: "", &start: "", &reboot: "", &again: "",
			&nobody: "not_found",
		} {
			wants(t, w.done(t, p, *a), want)
			w.ends(t, a.ID, map[bool]string{true: "running done", false: "running failed"}[want == ""])
		}
		w.Await(t, first.ServerID, "ACTIVE")
		w.Await(t, second.ServerID, "ACTIVE")
	})
	t.Run("delete", func(t *testing.T) {
		wants(t, w.done(t, p, w.ask(t, c, first.ID, domain.ActionRequest{Action: domain.Delete}, nil)), "")
		if left := w.Servers(t); len(left) != 1 || left[0].ID != second.ServerID ||
			testkit.Ports(t, first.ServerID) != 0 {
			t.Errorf("left are %+v, and %d ports", left, testkit.Ports(t, first.ServerID))
		}
		w.ends(t, first.ID, "deleting deleted")
		w.Drop(t, second.ServerID)
		w.Await(t, second.ServerID, "DELETED")
		wants(t, w.done(t, p, w.ask(t, c, second.ID, domain.ActionRequest{Action: domain.Stop}, nil)), "not_found")
		wants(t, w.done(t, p, w.ask(t, c, second.ID, domain.ActionRequest{Action: domain.Delete}, nil)), "")
	})
}

// TestLongStoppedAndReused: an order with start false leaves its server stopped, and the next one takes it and starts
// it.
func TestLongStoppedAndReused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	idle := w.finish(t, p, w.place(t, c, 1,
		func(o *domain.Order, _ *domain.DelegatedOrder) { o.Spec.Stopped = true }).ID)
	if i := idle.Instances[0]; idle.Status != domain.OrderDone || i.State != domain.InstanceStopped {
		t.Fatalf("the order is %s: %+v", idle.Status, i)
	}
	reuse := w.finish(t, p, w.place(t, c, 1,
		func(o *domain.Order, _ *domain.DelegatedOrder) { o.Spec.Reuse = true }).ID)
	if i := reuse.Instances[0]; reuse.Status != domain.OrderDone || i.State != domain.InstanceActive ||
		i.ID != idle.Instances[0].ID {
		t.Errorf("the order is %s: %+v", reuse.Status, i)
	}
	if servers := w.Servers(t); len(servers) != 1 || servers[0].Status != "ACTIVE" {
		t.Errorf("the project has %+v", servers)
	}
}

// TestUnknownNames fail the order with their problem. So does another key pair of the same name.
func TestUnknownNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	image := w.place(t, c, 2, func(_ *domain.Order, d *domain.DelegatedOrder) { d.Servers[1].Image = "no-such-image" })
	network := w.place(t, c, 1, func(_ *domain.Order,
		d *domain.DelegatedOrder,
	) {
		d.Servers[0].Networks = []string{"no-such-network"}
	})
	withGroup := func(name string) domain.Order {
		return w.place(t, c, 1, func(o *domain.Order, _ *domain.DelegatedOrder) {
			o.Instances[0].Spec.SecurityGroups = []string{"default", name}
		})
	}
	w.MakeSecurityGroup(t, "twin")
	w.MakeSecurityGroup(t, "twin")
	for want, placed := range map[string]domain.Order{
		`security_groups[1]: there is no security group "Default"; did you mean "default"?`: withGroup("Default"),
		`security_groups[1]: 2 security groups have the name "twin": give an id`:            withGroup("twin"),

		`image: there is no image "no-such-image"`:           image,
		`networks[0]: there is no network "no-such-network"`: network,
	} {
		order := w.finish(t, p, placed.ID)
		if order.Status != domain.OrderFailed {
			t.Errorf("the order is %s", order.Status)
		}
		for _, i := range order.Instances {
			if i.Problem == nil || i.Problem.Code == "" || i.Problem.Detail != want {
				t.Errorf("got %+v, want %s", i.Problem, want)
			}
		}
	}
	if servers := w.Servers(t); len(servers) != 0 {
		t.Errorf("the project has %+v", servers)
	}
}
