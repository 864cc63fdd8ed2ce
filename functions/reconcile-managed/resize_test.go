package reconcilemanaged

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// machine is a server that a test declares with one flavor after another.
type machine struct {
	*world

	by *domain.Connection
}

func (w machine) declare(t *testing.T, flavor string) {
	t.Helper()
	here := testkit.Sandbox(t)
	w.world.declare(t, domain.KindMachine, "web", domain.MachineSpec{
		Flavor: flavor, Image: here.Image, Networks: []string{here.Network},
	}, w.by, time.Now())
}

// is waits until Nova's only server of the project is so.
func (w machine) is(t *testing.T, what string, isReached func(domain.Server) bool) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, what, func() bool {
		servers, _, err := w.Session(t).Servers(t.Context(), domain.ServerQuery{Limit: 10})
		return err == nil && len(servers) == 1 && isReached(servers[0])
	})
}

// ready does rounds until the server is as declared.
func (w machine) ready(t *testing.T, flavor string) {
	t.Helper()
	w.is(t, "it has the flavor "+flavor, func(s domain.Server) bool {
		w.round(t, nil)
		m := w.get(t, domain.KindMachine, "web")
		return s.Flavor.Name == flavor && s.Status == "ACTIVE" && m.Status == domain.ManagedReady
	})
}

// newMachine declares a server, and waits until it is ready.
func newMachine(t *testing.T) machine {
	t.Helper()
	w := newWorld(t)
	m := machine{w, w.trust(t)}
	m.declare(t, testkit.Sandbox(t).Flavor)
	m.round(t, nil)
	m.ready(t, testkit.Sandbox(t).Flavor)
	return m
}

// TestLongResizeWithoutHost: Nova accepts a resize and then finds no host. That is repeated once after a pause. Then
// the resource stops, and says why.
func TestLongResizeWithoutHost(t *testing.T) {
	t.Parallel()
	w := newMachine(t)
	w.declare(t, w.TooLargeFlavor(t))
	w.is(t, "it has stopped", func(domain.Server) bool {
		w.round(t, nil)
		m := w.get(t, domain.KindMachine, "web")
		return progressing(m).Reason == "NoProgress"
	})
	m := w.get(t, domain.KindMachine, "web")
	if m.Status != domain.ManagedError || !strings.Contains(m.Reason, "did not make it") || m.Members[0].Writes != 2 {
		t.Errorf("it is %s, %s, %+v", m.Status, m.Reason, m.Members)
	}
}

// drifted waits until the fields of the server that others have changed are these.
func (w machine) drifted(t *testing.T, want ...string) {
	t.Helper()
	w.is(t, fmt.Sprintf("it has drift of %q", want), func(domain.Server) bool {
		w.round(t, nil)
		m := w.get(t, domain.KindMachine, "web")
		var fields []string
		for _, one := range m.Drift {
			fields = append(fields, one.Field)
		}
		return slices.Equal(fields, want) && (m.Status == domain.ManagedDegraded) == (len(want) > 0)
	})
}

// TestLongPortsOfServer: a security group and an interface that others take from a server are drift. With repair: auto
// the server gets them back in place.
func TestLongPortsOfServer(t *testing.T) {
	t.Parallel()
	w, here := newWorld(t), testkit.Sandbox(t)
	group := w.MakeSecurityGroup(t, "web")
	m := machine{w, w.trust(t)}
	w.declare(t, domain.KindMachine, "web", domain.MachineSpec{
		Flavor: here.Flavor, Image: here.Image, Networks: []string{here.Network}, SecurityGroups: []string{"web"},
	}, m.by, time.Now())
	server, cloud := w.settled(t, "web")[0], w.Session(t)
	port := func() domain.Port {
		t.Helper()
		found, err := cloud.ServerPorts(t.Context(), w.ID, server)
		if err != nil || len(found) != 1 || found[0].NetworkID != here.NetworkID {
			t.Fatalf("it has the ports %+v: %v", found, err)
		}
		return found[0]
	}
	before := port()
	if !slices.Equal(before.Groups, []string{group}) {
		t.Errorf("a new server has the groups %s, want %s", before.Groups, group)
	}
	if err := cloud.SetPortGroups(t.Context(), before.ID, []string{}); err != nil {
		t.Fatal(err)
	}
	m.drifted(t, "security_groups.web")
	path := "servers/" + server + "/os-interface/" + before.ID
	if status := w.Service(t, "nova").Do(t, http.MethodDelete, path, nil); status != http.StatusAccepted {
		t.Fatalf("the interface is not detached: %d", status)
	}
	m.drifted(t, "networks."+here.Network)
	w.exec(t, "update managed set repair = 'auto'")
	m.drifted(t)
	if after := port(); !slices.Equal(after.Groups, []string{group}) || w.settled(t, "web")[0] != server {
		t.Errorf("it has the port %+v", after)
	}
}
