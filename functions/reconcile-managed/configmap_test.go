package reconcilemanaged

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
)

// fileWorld has the deployment web of servers with the file of a configmap.
type fileWorld struct{ *fakeWorld }

// newFileWorld has three servers that were made with the file "one", and are replaced for another one.
func newFileWorld(t *testing.T) fileWorld {
	t.Helper()
	w := fileWorld{newFakeWorld(t)}
	w.change = func(spec *domain.DeploymentSpec) {
		spec.Update, spec.Configmaps = domain.UpdateReplace, []string{"files"}
	}
	w.file(t, "one")
	w.declare(t, 3, "tiny", 0)
	w.becomesQuiet(t, &crasher{})
	return w
}

// file declares what the file has.
func (w fileWorld) file(t *testing.T, text string) {
	t.Helper()
	w.declareAs(t, domain.KindConfigmap, "files", domain.ConfigmapSpec{Data: map[string]string{"motd": text}}, 0)
}

// have are the texts of the files of the servers, sorted.
func (w fileWorld) have() string {
	var all []string
	for _, s := range w.nova.servers {
		for _, text := range []string{"one", "two", "three"} {
			if strings.Contains(w.nova.texts[s.ID], base64.StdEncoding.EncodeToString([]byte(text))) {
				all = append(all, text)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// updated is the condition Updated.
func (w fileWorld) updated(t *testing.T) (found domain.Condition) {
	t.Helper()
	for _, c := range w.get(t).Conditions {
		if c.Type == domain.ConditionUpdated {
			found = c
		}
	}
	return found
}

// TestChangedFilesAreRolled: with update: replace a changed configmap replaces the servers one after the other, also
// when it changes again meanwhile, and then nothing more.
func TestChangedFilesAreRolled(t *testing.T) {
	t.Parallel()
	w := newFileWorld(t)
	w.file(t, "two")
	for range 2 { // two rounds, and each replaces a server
		w.round(t, w.replica(&crasher{}))
		w.nova.settle()
		w.pass(t, 2*time.Second)
	}
	if c := w.updated(t); c.Status != "False" || !strings.Contains(c.Message, "have earlier files of their") {
		t.Errorf("while servers are replaced it has %+v", c)
	}
	w.file(t, "three")
	for range mostTicks {
		w.tick(t, []managed.Engine{w.replica(&crasher{})})
		if n := strings.Count(w.nova.active(), ":tiny"); n < 2 {
			t.Errorf("only %d of 3 work: %s", n, w.nova.active())
		}
	}
	w.becomesQuiet(t, &crasher{})
	if c := w.updated(t); w.have() != "three three three" || c.Status != "True" || c.Reason != "AsDeclared" {
		t.Errorf("the servers have %s, with %+v", w.have(), c)
	}
	if w.nova.creates > 3+2+3 {
		t.Errorf("%d servers were made", w.nova.creates)
	}
	creates := w.nova.creates
	w.declare(t, 4, "tiny", 0)
	w.becomesQuiet(t, &crasher{})
	if w.nova.creates != creates+1 || w.have() != "three three three three" {
		t.Errorf("scaled up %d more were made; they have %s", w.nova.creates-creates, w.have())
	}
	w.declare(t, 0, "", 1) // a rollback has the newest files
	w.becomesQuiet(t, &crasher{})
	if w.nova.creates != creates+1 || w.have() != "three three three" {
		t.Errorf("rolled back %d more were made; they have %s", w.nova.creates-creates, w.have())
	}
}
