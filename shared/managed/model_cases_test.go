package managed

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// modelCase is a story of the model whose faults are given, in the order of the calls.
type modelCase struct {
	t *testing.T
	*modelWorld
	affinity string // of deployments
}

// tell lives a story in time of its own. In its end all is as declared.
func tell(t *testing.T, story func(c modelCase)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := modelCase{t, newModelWorld(), "spread"}
		c.forced = map[string][]string{}
		story(c)
		c.settles()
	})
}

// declares declares a resource with update: replace, as far as its kind has that.
func (c modelCase) declares(kind domain.Kind, name string, spec any) {
	c.t.Helper()
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	text, err := json.Marshal(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	in := domain.Managed{Kind: kind, Name: name, Spec: text, Repair: domain.RepairAuto}
	if kind == domain.KindDeployment {
		in.Schedule.Affinity = c.affinity
	}
	c.store.declare(in)
}

// deletes deletes a resource.
func (c modelCase) deletes(kind domain.Kind, name string) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	c.store.delete(c.store.find(kind, name), false)
}

// members are the ids of all members.
func (c modelCase) members() []uuid.UUID {
	return slices.SortedFunc(maps.Keys(c.store.members), compareIDs)
}

// settles checks that in the end all is as declared, without any rule.
func (c modelCase) settles() {
	c.t.Helper()
	c.elapse(15*time.Minute, 0, 0, 100)
	c.elapse(15*time.Minute, 0, 0, 100)
	for _, p := range c.problems() {
		c.t.Error(p.text)
	}
	for call, left := range c.forced {
		if len(left) > 0 {
			c.t.Errorf("%s is not called: %q", call, left)
		}
	}
	if c.t.Failed() {
		for _, line := range c.history {
			c.t.Log(line)
		}
	}
}

var oneMachine = domain.MachineSpec{
	Flavor: "tiny", Image: "cirros", Networks: []string{"private"}, Update: domain.UpdateReplace,
}

// TestForbiddenListOfOrder: a list of an order's servers that is forbidden does not reject the server. Its create call
// may be open, so no other server is made when it is declared again.
func TestForbiddenListOfOrder(t *testing.T) {
	t.Parallel()
	tell(t, func(c modelCase) {
		c.declares(domain.KindMachine, "db", oneMachine)
		c.forced["CreateServer db"] = []string{"crash late"}
		c.forced["Servers"] = []string{"403"}
		c.pass(5, 0) // the claims of this process end before the server is made
		first := c.members()
		c.pass(0, 0)
		c.declares(domain.KindMachine, "db", oneMachine)
		c.elapse(time.Minute, 0, 0, 20)
		if now := c.members(); !slices.Equal(now, first) {
			c.t.Errorf("the server is %s instead of %s", now, first)
		}
	})
}

// TestReplacedInCellThatIsDown: a server that others have deleted, and that is replaced, stays deleted while its cell
// is down. It is remembered, because its first create call may still make another one.
func TestReplacedInCellThatIsDown(t *testing.T) {
	t.Parallel()
	tell(t, func(c modelCase) {
		c.declares(domain.KindMachine, "db", oneMachine)
		c.forced["CreateServer db"] = []string{"lost"}
		c.elapse(time.Minute, 0, 0, 20)
		first := c.cloud.of(domain.KindMachine)[0]
		if !first.inCell() {
			c.t.Fatalf("the server %s is in the other cell", first.id)
		}
		c.cloud.othersDelete(first)
		for len(c.cloud.objects) < 2 || c.cloud.objects[1].server.Status != "ACTIVE" {
			c.elapse(time.Second, 0, 0, 1)
		}
		c.elapse(3*time.Second, 0, 0, 3)
		c.isDown = true
		c.pass(0, 0)
		c.isDown = false
		if c.elapse(5*time.Minute, 0, 0, 20); len(c.cloud.objects) > 2 {
			c.t.Errorf("%d servers were made instead of 2", len(c.cloud.objects))
		}
	})
}

// TestReplacedBeforeItIsStored: a server whose create call had no answer, and that has another flavor than is declared
// by now, is replaced although its volume is attached to it, and its id is not stored yet.
func TestReplacedBeforeItIsStored(t *testing.T) {
	t.Parallel()
	tell(t, func(c modelCase) {
		c.declares(domain.KindVolume, "data", domain.VolumeSpec{SizeGB: 1})
		c.elapse(time.Minute, 0, 0, 20)
		spec := oneMachine
		spec.Volumes = []string{"data"}
		c.declares(domain.KindMachine, "db", spec)
		c.forced["CreateServer db"] = []string{"late"}
		spec.Flavor = "small"
		time.AfterFunc(25*time.Second, func() { c.declares(domain.KindMachine, "db", spec) }) // it is made by then
		c.elapse(time.Minute, 0, 0, 20)
	})
}

// TestFilesOfUnsentCall: a server has the files of the call that has made it, and not those of one that was stored and
// never sent: they are changed back.
func TestFilesOfUnsentCall(t *testing.T) {
	t.Parallel()
	tell(t, func(c modelCase) {
		files := func(text string) {
			c.declares(domain.KindConfigmap, "files", domain.ConfigmapSpec{Data: map[string]string{"a": text}})
		}
		files("1")
		c.elapse(time.Minute, 0, 0, 20)
		spec := oneMachine
		spec.Configmaps = []string{"files"}
		c.declares(domain.KindMachine, "db", spec)
		c.forced["CreateServer db"] = []string{"crash before"}
		c.elapse(time.Second, 0, 0, 1)
		files("2")
		for len(c.cloud.of(domain.KindMachine)) == 0 {
			c.elapse(time.Second, 0, 0, 1)
		}
		files("1")
	})
}

// TestLateServerGroup: a server group that is made after its call has lost its client is deleted with the deployment.
func TestLateServerGroup(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"crash late", "late"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			tell(t, func(c modelCase) {
				c.declares(domain.KindDeployment, "web", domain.DeploymentSpec{MachineSpec: oneMachine, Count: 1})
				c.forced["EnsureServerGroup group"] = []string{how}
				c.elapse(time.Second, 0, 0, 1)
				c.deletes(domain.KindDeployment, "web")
			})
		})
	}
}

// TestLateServerGroupOfCheck: a server group that is made late by the check in front of a replacement is deleted with
// the deployment, although no server has been made for it.
func TestLateServerGroupOfCheck(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"crash late", "late"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			tell(t, func(c modelCase) {
				spec := domain.DeploymentSpec{MachineSpec: oneMachine, Count: 1}
				c.declares(domain.KindDeployment, "web", spec)
				c.elapse(time.Minute, 0, 0, 20)
				c.forced["EnsureServerGroup group"] = []string{how}
				spec.Flavor = "small"
				c.affinity = "pack"
				c.declares(domain.KindDeployment, "web", spec)
				c.elapse(time.Second, 0, 0, 1)
				if len(c.forced["EnsureServerGroup group"]) > 0 {
					c.t.Fatal("the check makes no server group")
				}
				c.deletes(domain.KindDeployment, "web")
			})
		})
	}
}

// TestCreationsOfDeclaration: creations that fail count as those of the declaration that they are of, although it is
// not the first one: the resource stops after five, until it is declared again.
func TestCreationsOfDeclaration(t *testing.T) {
	t.Parallel()
	tell(t, func(c modelCase) {
		spec := domain.VolumeSpec{SizeGB: 1}
		c.declares(domain.KindVolume, "data", spec)
		c.declares(domain.KindVolume, "data", spec)
		c.forced["CreateVolume data"] = slices.Repeat([]string{"breaks"}, mostCreations)
		c.elapse(2*time.Hour, 0, 0, 1000)
		if status := c.store.find(domain.KindVolume, "data").Status; status != domain.ManagedError {
			c.t.Errorf("after %d failures it is %s", mostCreations, status)
		}
		c.declares(domain.KindVolume, "data", spec)
	})
}

// TestForbiddenConfirmation: a resize is confirmed, although its first confirmation was forbidden.
func TestForbiddenConfirmation(t *testing.T) {
	t.Parallel()
	tell(t, func(c modelCase) {
		spec := oneMachine
		spec.Update = ""
		c.declares(domain.KindMachine, "db", spec)
		c.elapse(time.Minute, 0, 0, 20)
		spec.Flavor = "small"
		c.declares(domain.KindMachine, "db", spec)
		c.forced["ConfirmMigration db"] = []string{"403"}
	})
}

// forcedFault takes the next fault that is given for a call.
func (w *modelWorld) forcedFault(name string) (how string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if method, _, _ := strings.Cut(name, " "); len(w.forced[method]) > 0 { // whatever it is called for
		name = method
	}
	if all := w.forced[name]; len(all) > 0 {
		how, w.forced[name] = all[0], slices.Delete(slices.Clone(all), 0, 1)
	}
	return how
}
