package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
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

// TestForcedDown: a host that an admin has forced down in Nova is down at once, whatever its agent, its status URL and
// its own reports say, and up as soon as that is taken back.
func TestForcedDown(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b")
	w.reported("a", time.Second)
	w.reported("b", time.Second)
	w.observed(limits, "a up", "b up")
	if _, err := w.heartbeat("a", domain.NodeUp, ""); err != nil {
		t.Fatal(err)
	}
	w.hosts[0].IsUp, w.hosts[0].ForcedDown = false, true
	answering := limits
	answering.Answering = []string{"a"}
	w.observed(answering, "a down")
	w.events("a", "up down")
	if n := w.node("a"); !n.ForcedDown || n.StatusReason != "an admin has forced it down in Nova" {
		t.Errorf("%+v", n)
	}
	w.observed(answering)
	w.hosts[0].IsUp, w.hosts[0].ForcedDown = true, false
	w.observed(limits, "a up")
	if n := w.node("a"); n.ForcedDown || n.StatusReason != "" {
		t.Errorf("%+v", n)
	}
}

// TestHeldZones: one event when a zone is held, and one when it is free again; when that was is kept.
func TestHeldZones(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t), t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(w.FreeZone(ctx, "nova"))
	check(w.MonitorFailed(ctx, "away"))
	if zones, err := w.HeldZones(ctx); err != nil || len(zones) > 0 {
		t.Errorf("at first: %+v %v", zones, err)
	}
	check(w.HoldZone(ctx, "nova", "3 of 4"))
	check(w.HoldZone(ctx, "nova", "2 of 4"))
	check(w.HoldZone(ctx, "a/b", "1 of 1"))
	if got := testkit.Scalar[string](t, w.conn, `select data::text from events where subject = 'monitor/zone/nova'`); got !=
		`{"zone": "nova", "reason": "3 of 4", "status": "failed", "monitor": "zone"}` {
		t.Errorf("the event has %s", got)
	}
	w.events("monitor/zone/nova", "failed")
	zones, err := w.HeldZones(ctx)
	if err != nil || len(zones) != 2 || zones["nova"].Since.IsZero() || !zones["nova"].EndedAt.IsZero() ||
		zones["a/b"].Since.IsZero() {
		t.Errorf("held: %+v %v", zones, err)
	}
	check(w.FreeZone(ctx, "nova"))
	check(w.FreeZone(ctx, "nova"))
	w.events("monitor/zone/nova", "works")
	if zones, err = w.HeldZones(ctx); err != nil || !zones["nova"].Since.IsZero() || zones["nova"].EndedAt.IsZero() ||
		zones["a/b"].Since.IsZero() {
		t.Errorf("free: %+v %v", zones, err)
	}
	w.events("monitor/nodes", "failed")
}

// TestSetProbed keeps which status URLs have answered when they were requested last.
func TestSetProbed(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t, "a", "b", "c"), t.Context()
	w.observed(limits, "a up", "b up", "c up")
	if err := w.SetProbed(ctx, []string{"a", "b"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.SetProbed(ctx, nil, []string{"b"}); err != nil {
		t.Fatal(err)
	}
	a, b, c := w.node("a"), w.node("b"), w.node("c")
	if a.AnsweredAt.IsZero() || !b.AnsweredAt.IsZero() || b.ProbedAt.Before(a.ProbedAt) || !c.ProbedAt.IsZero() {
		t.Errorf("%+v\n%+v\n%+v", a, b, c)
	}
}
