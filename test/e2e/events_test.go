//go:build e2e

package e2e

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// receiver is a program outside of the cluster that events are pushed to.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	states map[string][]string // by subject, in the order of arrival, repeats left out
	seen   map[string]bool
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{states: map[string][]string{}, seen: map[string]bool{}}
	r.Server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: r, ReadHeaderTimeout: time.Second}}
	r.Start()
	t.Cleanup(r.Close)
	return r
}

// ServeHTTP consents, and takes every event.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodOptions {
		w.Header().Set("WebHook-Allowed-Origin", req.Header.Get("WebHook-Request-Origin"))
		return
	}
	event, err := cloudevents.NewEventFromHTTPRequest(req)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var data struct{ State, Status string }
	_ = event.DataAs(&data)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.seen[event.ID()] {
		r.seen[event.ID()] = true
		r.states[event.Subject()] = append(r.states[event.Subject()], data.State+data.Status)
	}
	w.WriteHeader(http.StatusNoContent)
}

// statesOf returns the states that arrived for a subject, in order.
func (r *receiver) statesOf(subject string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.states[subject])
}

// TestEventsArePushed from functions that were all at zero: an order's instances become active, and one is stopped, and
// the receiver gets both without polling.
func TestEventsArePushed(t *testing.T) {
	project := testkit.NewProject(t)
	token, facts, events := project.Token(t), testkit.Sandbox(t), newReceiver(t)
	order, _ := json.Marshal(map[string]any{
		"name": "pushed", "count": 2, "flavor": facts.Flavor, "image": facts.Image, "networks": []string{facts.Network},
		"callback": map[string]any{"url": events.URL},
	})
	answer := client(t, "gateway", token).Post(t, "/v1/launch", string(order))
	if answer.Status != http.StatusAccepted {
		t.Fatalf("launch: %d %s", answer.Status, answer.Body)
	}
	var placed struct {
		ID        string
		Instances []struct{ ID string }
	}
	answer.JSON(t, &placed)
	for _, i := range placed.Instances {
		testkit.Eventually(t, 2*time.Minute, "the event of the active instance arrives", func() bool {
			states := events.statesOf(i.ID)
			return len(states) > 0 && states[len(states)-1] == "activeACTIVE"
		})
	}
	testkit.Eventually(t, 2*time.Minute, "the event of the finished order arrives",
		func() bool { return slices.Contains(events.statesOf(placed.ID), "done") })

	answer = client(t, "gateway", token).Post(t, "/v1/servers/"+placed.Instances[0].ID+"/actions", `{"action":"stop"}`)
	if answer.Status != http.StatusAccepted {
		t.Fatalf("stop: %d %s", answer.Status, answer.Body)
	}
	stopped := time.Now()
	testkit.Eventually(t, 2*time.Minute, "the event of the stop arrives", func() bool {
		states := events.statesOf(placed.Instances[0].ID)
		return states[len(states)-1] == "stoppedSHUTOFF"
	})
	t.Logf("the event of the stop arrived after %s: %v", time.Since(stopped).Round(100*time.Millisecond),
		events.statesOf(placed.Instances[0].ID))
}
