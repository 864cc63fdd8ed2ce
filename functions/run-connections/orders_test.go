package runconnections

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
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
		stop, start := w.act(t, c, first.ID, domain.ActionRequest{Action: domain.Stop}, nil), w.act(t, c, first.ID,
			domain.ActionRequest{Action: domain.Start}, nil)
		reboot := w.act(t, c, second.ID, domain.ActionRequest{Action: domain.Reboot, Hard: true}, nil)
		// once it is active, there is nothing to do
		again := w.act(t, c, second.ID, domain.ActionRequest{Action: domain.Start}, nil)
		nobody := w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
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
		wants(t, w.done(t, p, w.act(t, c, first.ID, domain.ActionRequest{Action: domain.Delete}, nil)), "")
		if left := w.Servers(t); len(left) != 1 || left[0].ID != second.ServerID ||
			testkit.Ports(t, first.ServerID) != 0 {
			t.Errorf("left are %+v, and %d ports", left, testkit.Ports(t, first.ServerID))
		}
		w.ends(t, first.ID, "deleting deleted")
		w.Drop(t, second.ServerID)
		w.Await(t, second.ServerID, "DELETED")
		wants(t, w.done(t, p, w.act(t, c, second.ID, domain.ActionRequest{Action: domain.Stop}, nil)), "not_found")
		wants(t, w.done(t, p, w.act(t, c, second.ID, domain.ActionRequest{Action: domain.Delete}, nil)), "")
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

// TestLongAttachedByConnection: a server that is ordered through a connection boots from a volume, has another one, and
// a floating IP. All count for the quota until they are deleted with it.
func TestLongAttachedByConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Cleanup(func() { w.DeleteVolumes(t) })
	w.RoutedNetwork(t, "inside", "10.55.0.0/24")
	diskless := w.DisklessFlavor(t)
	c, p := w.trust(t), w.function(t, nil)
	with := func(bootGB int) domain.Order {
		return w.place(t, c, 1, func(o *domain.Order, d *domain.DelegatedOrder) {
			o.Spec.FloatingIPs, d.Servers[0].Networks = true, []string{"inside"}
			spec := &o.Instances[0].Spec
			spec.FloatingIP = &domain.ServerFloatingIP{NetworkID: "public"}
			for _, flavor := range c.Flavors {
				if flavor.Name == diskless {
					spec.Sized(flavor)
				}
			}
			spec.Volumes = []domain.ServerVolume{
				{IsBoot: true, Source: domain.FromImage, SizeGB: bootGB, DeleteOnTermination: true},
				{SizeGB: 1, DeleteOnTermination: true},
			}
		})
	}
	uses := func(volumes, gigabytes, addresses int) {
		t.Helper()
		_, who := w.member(t)
		found, err := postgres.Connections{DB: w.db}.Get(t.Context(), who, c.ID)
		if err != nil || found.Used.Volumes != volumes || found.Used.Gigabytes != gigabytes ||
			found.Used.FloatingIPs != addresses {
			t.Errorf("the connection uses %+v, %v", found.Used, err)
		}
	}
	order := w.finish(t, p, with(2).ID)
	if order.Status != domain.OrderDone {
		t.Fatalf("the order is %s: %+v", order.Status, order.Instances)
	}
	uses(2, 3, 1)
	if f := order.Instances[0].FloatingIP; f == nil || f.Address == "" || len(w.FloatingIPs(t)) != 1 {
		t.Errorf("it has the floating IP %+v", f)
	}
	cloud, _ := w.member(t)
	server := order.Instances[0].ServerID
	if attached, err := cloud.Attachments(t.Context(), server); err != nil || len(attached) != 2 ||
		!attached[0].DeleteOnTermination || !attached[1].DeleteOnTermination {
		t.Errorf("it has the volumes %+v, %v", attached, err)
	}
	wants(t, w.done(t, p, w.act(t, c, order.Instances[0].ID, domain.ActionRequest{Action: domain.Delete}, nil)), "")
	uses(0, 0, 0)
	if left := w.FloatingIPs(t); len(left) > 0 {
		t.Errorf("the floating IPs %+v are left", left)
	}
	testkit.Eventually(t, time.Minute, "no volume is left", func() bool {
		left, err := cloud.Volumes(t.Context(), "", "")
		return err == nil && len(left) == 0
	})
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

// TestLongRollback deletes an order's servers and its key pair when one of the servers cannot be made.
func TestLongRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	huge := w.TooLargeFlavor(t)
	c := w.trust(t)
	p := w.function(t, nil)
	order := w.finish(t, p, w.place(t, c, 2, func(o *domain.Order, d *domain.DelegatedOrder) {
		o.Spec.OnFailure, o.Spec.GeneratedKey, d.PublicKey = domain.Rollback, "rolled", publicKey
		for n := range o.Instances {
			o.Instances[n].Spec.KeyName = "rolled"
		}
		o.Instances[1].Spec.FlavorID = huge
	}).ID)
	if order.Status != domain.OrderRolledBack {
		t.Errorf("the order is %s: %+v", order.Status, order.Instances)
	}
	w.Await(t, order.Instances[0].ServerID, "DELETED")
	if servers, keys := w.Servers(t), w.KeyPairs(t); len(servers) != 0 || len(keys) != 0 {
		t.Errorf("left are the servers %+v and the keys %v", servers, keys)
	}
}

// publicKey is the public half of an SSH key.
const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2nrJo1qkVTnG2uVwaL2P0N6kWPlLCu1eDJ3bFzPn7p made"

// TestOtherKeyIsNotFatal: another key pair of the same name is neither overwritten nor deleted with the order, and no
// server is made with it.
func TestOtherKeyIsNotFatal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	session, _ := w.member(t)
	const other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl other"
	if _, err := session.ImportKeyPair(t.Context(), "taken", other); err != nil {
		t.Fatal(err)
	}
	order := w.finish(t, p, w.place(t, c, 1, func(o *domain.Order, d *domain.DelegatedOrder) {
		o.Spec.GeneratedKey, d.PublicKey, o.Instances[0].Spec.KeyName = "taken", publicKey, "taken"
	}).ID)
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Problem == nil || i.Problem.Code != "conflict" {
		t.Errorf("the order is %s: %+v", order.Status, i.Problem)
	}
	if keys := w.KeyPairs(t); len(keys) != 1 {
		t.Errorf("its owner's key pairs are %v", keys)
	}
}

// TestLongOldOrderFails: an order that is too old fails with the servers it still lacks.
func TestLongOldOrderFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	placed := w.place(t, c, 1, nil)
	w.exec(t, "update orders set created_at = now() - interval '61 minutes'")
	order := w.finish(t, w.function(t, nil), placed.ID)
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Problem == nil ||
		i.Problem.Code != "conflict" || len(w.Servers(t)) != 0 {
		t.Errorf("the order is %s: %+v", order.Status, i.Problem)
	}
}

// TestTwoReplicas, each woken several times: an order and an action are done once.
func TestTwoReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	replicas := []*testkit.Client{w.function(t, nil), w.function(t, nil)}
	placed := w.place(t, c, 2, nil)
	nobody := w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Reboot}, nil)
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() { tick(t, replicas[n%2]) })
	}
	all.Wait()
	order := w.finish(t, replicas[0], placed.ID)
	if servers := w.Servers(t); order.Status != domain.OrderDone || len(servers) != 2 {
		t.Errorf("the order is %s, and there are %d servers", order.Status, len(servers))
	}
	w.ends(t, order.ID, "running done")
	wants(t, w.done(t, replicas[1], nobody), "not_found")
	if got := w.eventsOf(t, nobody.ID); got != "running failed" {
		t.Errorf("the action's events are %q", got)
	}
}

// TestLongReusedServerIsChecked before it is used. A server that is deleted or has another image than ordered is
// replaced by a new one. The server with the other image becomes idle again, under the image that it has.
func TestLongReusedServerIsChecked(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	w := newWorld(t)
	f := testkit.Sandbox(t)
	c := w.trust(t)
	p := w.function(t, nil)
	idle := w.finish(t, p, w.place(t, c, 2, func(o *domain.Order, d *domain.DelegatedOrder) {
		o.Spec.Stopped, d.Servers[1].Image = true, f.CommunityID
	}).ID).Instances
	for _, i := range idle {
		w.Await(t, i.ServerID, "SHUTOFF")
	}
	session, _ := w.member(t)
	if err := session.DeleteServer(t.Context(), idle[0].ServerID); err != nil {
		t.Fatal(err)
	}
	w.Await(t, idle[0].ServerID, "DELETED")
	// As if the name had been given to another image since, or the server was rebuilt.
	w.exec(t, `update instances set spec = spec || jsonb_build_object('image_id', $2::text, 'image', $3::text)
  where id = $1`, idle[1].ID, f.ImageID, f.Image)
	reusing := func(n int, image string) domain.Order {
		t.Helper()
		placed := w.place(t, c, n, func(o *domain.Order, d *domain.DelegatedOrder) {
			o.Spec.Reuse = true
			for k := range o.Instances {
				o.Instances[k].Name, o.Instances[k].Spec.ImageRef = "instead", image
				d.Servers[k].Image = image
			}
		})
		if placed.Instances[0].State != domain.InstanceStopped {
			t.Errorf("taken is %+v", placed.Instances[0])
		}
		return w.finish(t, p, placed.ID)
	}
	order := reusing(2, f.Image)
	if order.Status != domain.OrderDone {
		t.Errorf("the order is %s", order.Status)
	}
	for _, i := range order.Instances {
		server, err := session.Server(t.Context(), i.ServerID)
		if err != nil || server.Status != "ACTIVE" || server.Image == nil || server.Image.ID != f.ImageID ||
			i.Name != "instead" || i.State != domain.InstanceActive {
			t.Errorf("it has %s %s %s, which is %+v %v", i.Name, i.State, i.ServerID, server, err)
		}
	}
	if got := w.text(t, "select concat(order_id, state, spec->>'image_id', spec->>'image') from instances where id = $1",
		idle[1].ID); got != "stopped"+f.CommunityID {
		t.Errorf("the one with another image is %q", got)
	}
	w.ends(t, idle[0].ID, "deleted")
	if again := reusing(1, f.CommunityID); again.Status != domain.OrderDone || again.Instances[0].ID != idle[1].ID ||
		again.Instances[0].State != domain.InstanceActive {
		t.Errorf("an order of that image is %s: %+v", again.Status, again.Instances)
	}
}

// TestLongReusedServerIsDeletedLate, when it was started already: the order gets another one.
func TestLongReusedServerIsDeletedLate(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	idle := w.finish(t, p, w.place(t, c, 1, func(o *domain.Order,
		_ *domain.DelegatedOrder,
	) {
		o.Spec.Stopped = true
	}).ID).Instances[0]
	placed := w.place(t, c, 1, func(o *domain.Order, _ *domain.DelegatedOrder) { o.Spec.Reuse = true })
	if placed.Instances[0].ID != idle.ID {
		t.Fatalf("taken is %+v", placed.Instances)
	}
	session, _ := w.member(t)
	if err := session.DeleteServer(t.Context(), idle.ServerID); err != nil {
		t.Fatal(err)
	}
	w.Await(t, idle.ServerID, "DELETED")
	w.exec(t, "update instances set state = 'deleted' where id = $1", idle.ID) // as poll-instances writes it
	order := w.finish(t, p, placed.ID)
	if i := order.Instances[0]; order.Status != domain.OrderDone || i.ID == idle.ID ||
		i.State != domain.InstanceActive ||
		i.ServerID == "" {
		t.Errorf("the order is %s: %+v", order.Status, order.Instances)
	}
}

// interrupted is a database in which something happens after an order was read and before it is claimed.
type interrupted struct {
	postgres.Orders
	before func()
}

func (i interrupted) Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error) {
	i.before()
	return i.Orders.Claim(ctx, order, claimFor)
}

// TestAbandonTakesClaim: another replica sends a create call after the order was read, and dies. That instance is not
// abandoned while Nova may still make its server.
func TestAbandonTakesClaim(t *testing.T) {
	t.Parallel()
	w := fakes(t)
	c := w.remote(t, newFakeCloud(t))
	store := postgres.Orders{DB: w.db}
	order := domain.Order{
		ID: uuid.New(), ProjectID: w.ID, DomainID: "d", UserID: "u", BodySHA256: []byte{1},
		ConnectionID: c.ID, Payload: []byte{1},
	}
	order.Instances = []domain.Instance{{
		ID: uuid.New(), ProjectID: w.ID, Name: "web", State: domain.InstanceRequested,
		ConnectionID: c.ID, Remote: true,
	}}
	if _, err := store.Place(t.Context(), order, 0); err != nil {
		t.Fatal(err)
	}
	e := newService(w.db, func(...string) {}).engine(c)
	e.Orders = interrupted{store, func() {
		claim, err := store.Claim(t.Context(), order, time.Minute)
		if err != nil || !claim.Acquired {
			t.Errorf("got %+v %v", claim, err)
		}
		call := domain.CreateCall{ID: uuid.New(), InstanceID: order.Instances[0].ID, Name: "web"}
		// the claim ends with the replica
		if err := store.BeginCall(t.Context(), order, claim, call, 0, time.Minute); err != nil {
			t.Error(err)
		}
	}}
	if err := e.Abandon(t.Context(), c.ProjectID, order.ID, domain.ProblemOf(errTooLong)); err != nil {
		t.Error(err)
	}
	if got := w.order(t, order.ID); got.Status != domain.OrderRunning || got.Undecided() != 1 {
		t.Errorf("the order is %s, its instances %+v", got.Status, got.Instances)
	}
	if held := w.text(t, "select (claimed_until is not null)::text from orders"); held != "false" {
		t.Error("the order stays claimed")
	}
}
