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

// newFileWorld has servers that were made with the file "one".
func newFileWorld(t *testing.T, count int, update string) fileWorld {
	t.Helper()
	w := fileWorld{newFakeWorld(t)}
	w.updates(update)
	w.file(t, "one")
	w.declare(t, count, "tiny", 0)
	w.becomesQuiet(t, &crasher{})
	return w
}

// updates has later declarations of the deployment updated so.
func (w fileWorld) updates(update string) {
	w.change = func(spec *domain.DeploymentSpec) { spec.Update, spec.Configmaps = update, []string{"files"} }
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
	w := newFileWorld(t, 3, domain.UpdateReplace)
	w.file(t, "two")
	for range 2 { // two rounds, and each replaces a server
		w.round(t, w.replica(&crasher{}))
		w.nova.settle()
		w.pass(t, managedPause)
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

// TestChangedFilesAreShown: with update: in_place a changed configmap reaches new servers only, and the resource says
// how many have earlier files. Declared with replace, these are replaced.
func TestChangedFilesAreShown(t *testing.T) {
	t.Parallel()
	w := newFileWorld(t, 2, domain.UpdateInPlace)
	w.file(t, "two")
	w.becomesQuiet(t, &crasher{})
	shows := func(what, text, have string, creates int) {
		t.Helper()
		m, c := w.get(t), w.updated(t)
		if m.Status != domain.ManagedReady || len(m.Drift) > 0 || c.Status != "True" ||
			!strings.Contains(c.Message, text) {
			t.Errorf("%s it is %s, with %+v", what, m.Status, c)
		}
		if isOld := text != ""; (c.Reason == "EarlierFiles") != isOld {
			t.Errorf("%s it has %+v", what, c)
		}
		if w.have() != have || w.nova.creates != creates {
			t.Errorf("%s the servers have %s after %d creations", what, w.have(), w.nova.creates)
		}
	}
	shows("changed", "2 of 2 have earlier files of their configmaps", "one one", 2)
	w.declare(t, 3, "tiny", 0)
	w.becomesQuiet(t, &crasher{})
	shows("scaled up", "2 of 3 have earlier files", "one one two", 3)
	w.file(t, "one")
	w.becomesQuiet(t, &crasher{})
	shows("changed back", "1 of 3 have earlier files", "one one two", 3)
	w.updates(domain.UpdateReplace)
	w.declare(t, 3, "tiny", 0)
	w.becomesQuiet(t, &crasher{})
	shows("with replace", "", "one one one", 4)
}

// TestFilesOfOlderServers: what servers have that were made before this was stored is not known, so nothing is said of
// them, and they stay.
func TestFilesOfOlderServers(t *testing.T) {
	t.Parallel()
	w := newFileWorld(t, 2, domain.UpdateReplace)
	w.exec(t, "update managed_members set user_data = ''")
	w.file(t, "two")
	w.becomesQuiet(t, &crasher{})
	if c := w.updated(t); w.have() != "one one" || c.Reason != "AsDeclared" {
		t.Errorf("the servers have %s, with %+v", w.have(), c)
	}
}

// TestFilesThatAreTooLarge: servers stay while those that would replace them could not be made with the files.
func TestFilesThatAreTooLarge(t *testing.T) {
	t.Parallel()
	w := newFileWorld(t, 2, domain.UpdateReplace)
	w.file(t, strings.Repeat("x", domain.MaxUserData))
	for range mostTicks {
		w.tick(t, []managed.Engine{w.replica(&crasher{})})
	}
	m := w.get(t)
	if w.have() != "one one" || w.nova.creates != 2 || !strings.Contains(m.Reason, "spec.configmaps") {
		t.Errorf("the servers have %s after %d creations: %s, %s", w.have(), w.nova.creates, m.Status, m.Reason)
	}
	w.file(t, "two")
	w.pass(t, longPause)
	w.becomesQuiet(t, &crasher{})
	if w.have() != "two two" {
		t.Errorf("with less text they have %s: %+v", w.have(), w.get(t).Conditions)
	}
}

const (
	managedPause = 2 * time.Second
	longPause    = 11 * time.Minute
)
