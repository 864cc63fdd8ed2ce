package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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

// delete deletes the resource, and waits until it is gone.
func (r resource) delete(t *testing.T) {
	t.Helper()
	if a := r.Do(t, http.MethodDelete, r.path, ""); a.Status != http.StatusAccepted {
		t.Fatalf("%s: got %d %s", r.path, a.Status, a.Body)
	}
	r.gone(t)
}

func (r resource) gone(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, settleTime, r.path+" is gone", func() bool {
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
