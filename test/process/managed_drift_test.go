package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/functions/managed"
	reconcilemanaged "github.com/cloudfn/cloudfn/functions/reconcile-managed"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// declaring is a project whose user declares resources over HTTP, at a process of managed that wakes one of
// reconcile-managed.
type declaring struct {
	*testkit.Client
	*testkit.Project

	conn *pgx.Conn // for one goroutine
}

// newDeclaring starts both. What a failed test leaves in Cinder and Octavia is deleted at its end.
func newDeclaring(t *testing.T) *declaring {
	t.Helper()
	database := testkit.Database(t)
	d := &declaring{Project: testkit.NewProject(t), conn: testkit.Connect(t, database)}
	t.Cleanup(func() {
		d.DeleteLoadBalancers(t)
		d.DeleteVolumes(t)
	})
	role := testkit.As(t, database, managed.Function, reconcilemanaged.Function)
	f := newFleet(t, testkit.Env(t, role, nil), "managed", "reconcile-managed")
	d.Client = f.of("managed").As(d.Project.Token(t))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // as the clock, which finds that it is due
		defer close(ended)
		for ctx.Err() == nil {
			_, _ = f.of("reconcile-managed").TryTick(t, "reconcile-managed")
			time.Sleep(time.Second)
		}
	}()
	t.Cleanup(func() {
		cancel()
		f.of("reconcile-managed").Kill()
		<-ended
		if t.Failed() {
			log := f.of("reconcile-managed").Log()
			t.Logf("reconcile-managed said: %s", log[max(0, len(log)-10000):])
		}
	})
	return d
}

// hurry has others' changes found within a second or two, instead of a minute or ten.
func (d *declaring) hurry(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_, err := d.conn.Exec(ctx, `
update managed_projects set due_at = clock_timestamp(), scan_at = clock_timestamp()
where due_at > clock_timestamp() + interval '2 seconds'`)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// resource is a declared resource at its path.
type resource struct {
	*declaring

	path string
}

func (d *declaring) resource(kind, name string) resource {
	return resource{d, "/v1/managed/" + kind + "/" + name}
}

// put declares a spec, with more fields of the declaration.
func (r resource) put(t *testing.T, spec any, more ...string) managed.Managed {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Join(append([]string{fmt.Sprintf(`{"spec": %s`, text)}, more...), ", ")
	a := r.Do(t, http.MethodPut, r.path, body+"}", "Content-Type", "application/json")
	if a.Status != http.StatusOK && a.Status != http.StatusCreated {
		t.Fatalf("%s: got %d %s", r.path, a.Status, a.Body)
	}
	var m managed.Managed
	a.JSON(t, &m)
	return m
}

// settleTime is how long a resource may take to become what is declared, on a busy machine.
const settleTime = 4 * time.Minute

// until reads the resource until the check holds.
func (r resource) until(t *testing.T, what string, check func(managed.Managed) bool) (m managed.Managed) {
	t.Helper()
	for end := time.Now().Add(settleTime); ; time.Sleep(200 * time.Millisecond) {
		a := r.Get(t, r.path)
		if a.Status != http.StatusOK {
			t.Fatalf("%s: got %d %s", r.path, a.Status, a.Body)
		}
		m = managed.Managed{}
		if a.JSON(t, &m); check(m) {
			return m
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not %s: %s", r.path, what, a.Body)
		}
	}
}

// declare declares a spec, waits until it is real, and returns the id of its one object.
func (r resource) declare(t *testing.T, spec any, more ...string) (objectID string) {
	t.Helper()
	declared := r.put(t, spec, more...)
	m := r.until(t, "ready", func(m managed.Managed) bool {
		return m.Status == "ready" && m.ObservedRevision == declared.Revision && len(m.Members) == 1 &&
			m.Members[0].Status == "ready" && m.Members[0].ObjectID != "" && len(m.Drift) == 0
	})
	return m.Members[0].ObjectID
}

// delete deletes the resource, and waits until it is deleted.
func (r resource) delete(t *testing.T) {
	t.Helper()
	if a := r.Do(t, http.MethodDelete, r.path, ""); a.Status != http.StatusAccepted {
		t.Fatalf("%s: got %d %s", r.path, a.Status, a.Body)
	}
	r.gone(t)
}

func (r resource) gone(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, settleTime, r.path+" is deleted", func() bool {
		return r.Get(t, r.path).Status == http.StatusNotFound
	})
}

// refused declares a spec that is refused, with the field's name.
func (r resource) refused(t *testing.T, spec, field string) {
	t.Helper()
	body := fmt.Sprintf(`{"spec": %s}`, spec)
	a := r.Do(t, http.MethodPut, r.path, body, "Content-Type", "application/json")
	if a.Status != http.StatusBadRequest || !testkit.Names(t, a, field) {
		t.Errorf("%s: got %d %s, want 400 with %s", spec, a.Status, a.Body, field)
	}
}

// absent checks that a service has no such object any more.
func absent(t *testing.T, service testkit.Service, path string) {
	t.Helper()
	if service.Has(t, path) {
		t.Errorf("%s is still there", path)
	}
}

const (
	manual = `"repair": "manual"`
	auto   = `"repair": "auto"`
)

// TestLongManagedDrift: others change objects by their services' own APIs. With repair manual each field is shown, with
// what is declared and what is, and left alone; with repair auto it is changed back.
func TestLongManagedDrift(t *testing.T) {
	t.Parallel()
	d := newDeclaring(t)
	d.hurry(t)
	for kind, check := range map[string]func(*testing.T, resource){
		"Volume": driftVolume, "Image": driftImage, "Loadbalancer": driftBalancer, "Secret": driftSecret,
		"VirtualMachine": driftMachine, "VirtualMachineDeployment": driftDeployment,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := d.resource(kind, "one")
			check(t, r)
			r.delete(t)
		})
	}
}

// drifts waits until exactly these fields are shown, each as "field declared actual", and checks that a round later the
// object is as others have left it.
func (r resource) drifts(t *testing.T, isLeft func() bool, want ...string) {
	t.Helper()
	shown := func(m managed.Managed) []string {
		var all []string
		for _, one := range m.Drift {
			all = append(all, fmt.Sprintf("%s %v %v", one.Field, one.Declared, one.Actual))
		}
		slices.Sort(all)
		return all
	}
	drifted := func(m managed.Managed) bool { return slices.Equal(shown(m), want) && m.Status == "degraded" }
	m := r.until(t, "drifted to "+strings.Join(want, ", "), drifted)
	for _, c := range m.Conditions {
		if c.Type == "InSync" && (c.Status != "False" || c.Reason != "Drifted") ||
			c.Type == "Updated" && c.Status != "True" {
			t.Errorf("%s: its condition is %+v", r.path, c)
		}
	}
	time.Sleep(3 * time.Second) // some rounds
	if m = r.until(t, "there", func(managed.Managed) bool { return true }); !drifted(m) || !isLeft() {
		t.Errorf("%s was not left alone: %+v", r.path, m)
	}
}

// byHand has others change an object, which must be taken.
func byHand(t *testing.T, service testkit.Service, method, path string, body any, header ...string) {
	t.Helper()
	if status := service.Do(t, method, path, body, header...); status >= http.StatusMultipleChoices {
		t.Fatalf("%s %s: got %d", method, path, status)
	}
}

func driftVolume(t *testing.T, r resource) {
	cinder, spec := r.Service(t, "cinder"), fields{"size_gb": 1, "metadata": fields{"a": "b", "c": "d"}}
	id := r.declare(t, spec, manual)
	change := func() {
		t.Helper()
		byHand(t, cinder, http.MethodPut, "volumes/"+id, fields{"volume": fields{
			"name": "theirs", "description": "by hand",
			"metadata": fields{"a": "x", "other": "y"}, // without its mark, which is put back
		}})
	}
	has := func(name, a string) bool {
		v := volumeOf(t, cinder, id)
		return v.Name == name && v.Metadata["a"] == a && v.Metadata["other"] == "y"
	}
	change()
	r.drifts(t, func() bool { return has("theirs", "x") }, "description  by hand", "metadata.a b x",
		"metadata.c d <nil>", "name one theirs")
	for range 2 {
		if same := r.declare(t, spec, auto); same != id || !has("one", "b") {
			t.Errorf("it was not repaired: %s", same)
		}
		change()
		testkit.Eventually(t, settleTime, "it is repaired", func() bool { return has("one", "b") })
	}
}

func driftImage(t *testing.T, r resource) {
	glance := r.Service(t, "glance")
	spec := fields{"disk_format": "raw", "content": "YQ==", "properties": fields{"os_distro": "debian"}}
	id := r.declare(t, spec, manual)
	change := func() {
		t.Helper()
		replace := func(path string, value any) fields { return fields{"op": "replace", "path": path, "value": value} }
		byHand(t, glance, http.MethodPatch, "images/"+id, []fields{
			replace("/name", "theirs"), replace("/os_distro", "ubuntu"), replace("/min_disk", 3),
		}, "Content-Type", "application/openstack-images-v2.1-json-patch")
	}
	has := func(name, distro string, disk int) bool {
		i := imageOf(t, glance, id)
		return i.Name == name && i.Distro == distro && i.MinDisk == disk
	}
	change()
	r.drifts(t, func() bool { return has("theirs", "ubuntu", 3) }, "min_disk_gb 0 3", "name one theirs",
		"properties.os_distro debian ubuntu")
	if same := r.declare(t, spec, auto); same != id || !has("one", "debian", 0) {
		t.Errorf("it was not repaired: %s", same)
	}
	change()
	testkit.Eventually(t, settleTime, "it is repaired", func() bool { return has("one", "debian", 0) })
}

func driftBalancer(t *testing.T, r resource) {
	octavia := r.Service(t, "octavia")
	port := func(n int) fields {
		return fields{"protocol": "TCP", "port": n, "member_port": 80, "addresses": []string{"192.0.2.1"}}
	}
	spec := fields{"network": testkit.Sandbox(t).Network, "listeners": []fields{port(80), port(81)}}
	id := r.declare(t, spec, manual)
	before := listenersOf(t, octavia, id)
	one := func(method, path string, body any) { // it is refused while the last change is not done
		t.Helper()
		testkit.Eventually(t, settleTime, "Octavia takes a change", func() bool {
			status := octavia.Do(t, method, "lbaas/"+path, body)
			if status >= http.StatusMultipleChoices && status != http.StatusConflict {
				t.Fatalf("%s: got %d", path, status)
			}
			return status != http.StatusConflict
		})
	}
	pool := "pools/" + before[80].Pool
	one(http.MethodPut, pool, fields{"pool": fields{"lb_algorithm": "SOURCE_IP"}})
	one(http.MethodDelete, "listeners/"+before[81].ID, nil)
	one(http.MethodPut, "loadbalancers/"+id, fields{"loadbalancer": fields{"name": "theirs"}})
	r.drifts(t, func() bool { return len(listenersOf(t, octavia, id)) == 1 },
		"listeners.tcp-80.algorithm ROUND_ROBIN SOURCE_IP", "listeners.tcp-81 TCP <nil>", "name one theirs")
	if same := r.declare(t, spec, auto); same != id {
		t.Errorf("it was replaced: %s", same)
	}
	after := listenersOf(t, octavia, id)
	var found struct {
		Pool struct {
			Algorithm string `json:"lb_algorithm"`
		}
	}
	octavia.Get(t, "lbaas/"+pool, &found)
	if found.Pool.Algorithm != "ROUND_ROBIN" || after[80] != before[80] || after[81].Pool != before[81].Pool ||
		after[81].ID == before[81].ID {
		t.Errorf("it was not repaired: %+v was %+v; %+v", after, before, found)
	}
}

func driftSecret(t *testing.T, r resource) {
	barbican, spec := r.Service(t, "barbican"), fields{"payload": testkit.Canary("a payload that others delete")}
	id := r.declare(t, spec, manual)
	byHand(t, barbican, http.MethodDelete, "secrets/"+id, nil)
	r.drifts(t, func() bool { return r.object(t) == id }, "exists true false")
	other := r.declare(t, spec, auto)
	if other == id || !barbican.Has(t, "secrets/"+other) {
		t.Errorf("it was not made again: %s", other)
	}
}

// object is the id of the one object of a resource.
func (r resource) object(t *testing.T) string {
	t.Helper()
	m := r.until(t, "there", func(managed.Managed) bool { return true })
	return m.Members[0].ObjectID
}

func machineSpec(t *testing.T) fields {
	t.Helper()
	s := testkit.Sandbox(t)
	return fields{
		"flavor": s.Flavor, "image": s.Image, "networks": []string{s.Network}, "metadata": fields{"a": "b"},
		"tags": []string{"kept", "removed"},
	}
}

func driftMachine(t *testing.T, r resource) {
	nova, spec := r.Service(t, "nova"), machineSpec(t)
	id := r.declare(t, spec, manual)
	byHand(t, nova, http.MethodPut, "servers/"+id, fields{"server": fields{"name": "theirs"}})
	byHand(t, nova, http.MethodPost, "servers/"+id+"/metadata", fields{"metadata": fields{"a": "x", "other": "y"}})
	byHand(t, nova, http.MethodDelete, "servers/"+id+"/tags/removed", nil, "OpenStack-API-Version", "compute 2.26")
	r.Tag(t, id, "theirs")
	has := func(name, a string, isTagged bool) bool {
		s, tags := serverOf(t, nova, id), r.Tags(t, id)
		return s.Name == name && s.Metadata["a"] == a && s.Metadata["other"] == "y" &&
			slices.Contains(tags, "removed") == isTagged && slices.Contains(tags, "theirs")
	}
	r.drifts(t, func() bool { return has("theirs", "x", false) }, "metadata.a b x", "name one theirs",
		"tags.removed removed <nil>")
	if same := r.declare(t, spec, auto); same != id || !has("one", "b", true) {
		t.Errorf("it was not repaired: %s", same)
	}
	r.madeAgain(t, nova, id)
}

// driftDeployment: the servers of a deployment are counted, so one that is deleted is made again whatever repair says.
func driftDeployment(t *testing.T, r resource) {
	spec := machineSpec(t)
	spec["count"] = 1
	r.madeAgain(t, r.Service(t, "nova"), r.declare(t, spec, manual))
}

// madeAgain deletes a server by hand, and waits for another one.
func (r resource) madeAgain(t *testing.T, nova testkit.Service, id string) {
	t.Helper()
	byHand(t, nova, http.MethodDelete, "servers/"+id, nil)
	m := r.until(t, "made again", func(m managed.Managed) bool {
		return m.Status == "ready" && len(m.Members) == 1 && m.Members[0].Status == "ready" &&
			m.Members[0].ObjectID != "" && m.Members[0].ObjectID != id
	})
	if s := serverOf(t, nova, m.Members[0].ObjectID); s.Status != "ACTIVE" || s.Metadata["a"] != "b" {
		t.Errorf("Nova has %+v", s)
	}
	absent(t, nova, "servers/"+id)
}
