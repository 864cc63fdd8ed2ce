package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestObserveBriefly: a poll that has not read the hypervisors leaves servers and usage as they are.
func TestObserveBriefly(t *testing.T) {
	t.Parallel()
	w := watch(t, "a")
	w.hosts[0].VCPUs, w.hosts[0].UsedVCPUs, w.hosts[0].RAMMB = 64, 3, 512
	w.observed(limits, "a up")
	want := domain.HostUsage{VCPUs: 64, UsedVCPUs: 3, RAMMB: 512}
	whole := w.hosts[0]
	w.hosts[0] = domain.ComputeHost{
		Name: "a", Zone: "nova", IsUp: true, IsEnabled: true, ServiceID: "s-a", IsBrief: true,
	}
	w.observed(limits)
	if n := w.node("a"); n.Servers != 2 || n.Usage != want {
		t.Errorf("after a brief poll it has %d servers, and %+v", n.Servers, n.Usage)
	}
	w.hosts[0] = whole
	w.hosts[0].Servers, w.hosts[0].UsedVCPUs = 0, 0
	w.observed(limits)
	if n := w.node("a"); n.Servers != 0 || n.Usage.UsedVCPUs != 0 || n.Usage.VCPUs != 64 {
		t.Errorf("after a whole poll it has %d servers, and %+v", n.Servers, n.Usage)
	}
}

// TestDetails keeps how far the hypervisors were read, beside what the monitor has.
func TestDetails(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t), t.Context()
	if d, err := w.Details(ctx); err != nil || d != (domain.NodeDetails{}) {
		t.Errorf("at first: %+v %v", d, err)
	}
	for _, marker := range []string{"h1", ""} {
		if err := w.SetDetails(ctx, marker); err != nil {
			t.Fatal(err)
		}
		if d, err := w.Details(ctx); err != nil || d.Marker != marker || time.Since(d.At).Abs() > time.Minute {
			t.Errorf("after a page: %+v %v", d, err)
		}
	}
	if err := w.MonitorFailed(ctx, "away"); err != nil {
		t.Fatal(err)
	}
	w.events("monitor/nodes", "failed")
}
