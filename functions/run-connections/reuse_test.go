package runconnections

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongReusedServerIsChecked before it is used. A server that is gone or has another image than ordered is replaced
// by a new one. The server with the other image becomes idle again, under the image that it has.
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
