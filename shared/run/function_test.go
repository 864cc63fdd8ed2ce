package run

import (
	"context"
	"io"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// TestRoutesAreBuiltOnce in a process that serves them: their descriptions take megabytes. They are also built without
// a service when they are to be described.
func TestRoutesAreBuiltOnce(t *testing.T) {
	calls := map[bool]int{} // by whether there is a service
	counted := things
	counted.Routes = func(th *thing) []httpx.Route {
		calls[th != nil]++
		return things.Routes(th)
	}
	all, err := list([]Function{counted})
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProcess(t.Context(), environment(nil), Texts{}, io.Discard, all)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	if calls[true] != 1 || calls[false] != 0 {
		t.Errorf("a process has built its routes %d times, and %d times without a service", calls[true], calls[false])
	}
	if d := Describe(counted); len(d.Routes) != 1 || calls[false] != 1 {
		t.Errorf("described are %q, built %d times", d.Routes, calls[false])
	}
}

// TestSchedules: event functions are woken at different seconds, so that they do not send their requests together.
func TestSchedules(t *testing.T) {
	at := func(name string, s Schedule) Function {
		f := tickThings
		f.Name, f.Schedule = name, s
		return f
	}
	for _, s := range []Schedule{Minutely, MinutelyAt(1), MinutelyAt(59)} {
		if _, err := list([]Function{at("a", s), at("b", MinutelyAt(8))}); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if _, err := list([]Function{at("a", s), at("b", s)}); err == nil {
			t.Errorf("two functions at %q are taken", s)
		}
	}
	for _, s := range []Schedule{
		"", "8", MinutelyAt(0), MinutelyAt(60), MinutelyAt(-1), "08 * * * * *", "0 * * * *", "8 * * * *",
	} {
		if _, err := list([]Function{at("a", s)}); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestTwoOfOneName(t *testing.T) {
	if _, err := list([]Function{things, tickThings, things}); err == nil || !strings.Contains(err.Error(), "things") {
		t.Errorf("got %v", err)
	}
	if _, err := list(nil); err == nil {
		t.Error("no function at all is taken")
	}
}

// TestCloudCalls: a function that limits its calls to OpenStack has a cloud of its own, and the others share one.
func TestCloudCalls(t *testing.T) {
	clouds := map[string]*openstack.Cloud{}
	declaration := func(name string, second, calls int) function {
		return Event[struct{}]{
			Name: name, Schedule: MinutelyAt(second), CloudCalls: calls,
			Build: func(_ struct{}, d Deps) (eventx.Func, error) {
				clouds[name] = d.Cloud
				return func(context.Context, cloudevents.Event) error { return nil }, nil
			},
		}.declared()
	}
	all := []function{
		declaration("a", 1, 0), declaration("b", 2, 8), declaration("c", 3, 8), declaration("d", 4, 0),
	}
	p, err := newProcess(t.Context(), environment(nil), Texts{}, io.Discard, all)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	if clouds["a"] != clouds["d"] || clouds["b"] == clouds["a"] || clouds["c"] == clouds["a"] ||
		clouds["b"] == clouds["c"] || len(p.limited) != 2 {
		t.Errorf("the clouds are %v", clouds)
	}
}
