package postgres_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// watched is a database whose nodes are observed.
type watched struct {
	*testing.T

	postgres.Nodes

	conn  *pgx.Conn
	hosts []domain.ComputeHost
}

func watch(t *testing.T, hosts ...string) *watched {
	t.Helper()
	database := testkit.Database(t)
	w := &watched{
		T: t, Nodes: postgres.Nodes{DB: open(t, database), EventProject: "ops"}, conn: testkit.Connect(t, database),
	}
	for _, name := range hosts {
		w.hosts = append(w.hosts, domain.ComputeHost{
			Name: name, Zone: "nova", IsUp: true, IsEnabled: true, ServiceID: "s-" + name, Servers: 2,
		})
	}
	return w
}

// reported sets how long ago a host has reported, by Nova's clock.
func (w *watched) reported(host string, ago time.Duration) {
	at := slices.IndexFunc(w.hosts, func(h domain.ComputeHost) bool { return h.Name == host })
	w.hosts[at].SeenAt = time.Now().Add(-ago)
	w.hosts[at].IsUp = ago < time.Minute
}

// limits are the defaults of watch-nodes.
var limits = domain.NodeLimits{Suspect: 75 * time.Second, Down: 180 * time.Second}

// observed checks which hosts have changed, as "name status".
func (w *watched) observed(limits domain.NodeLimits, want ...string) []domain.Node {
	w.Helper()
	changed, err := w.Observe(w.Context(), w.hosts, limits)
	if err != nil {
		w.Fatal(err)
	}
	var got []string
	for _, n := range changed {
		got = append(got, n.Name+" "+string(n.Status))
	}
	if !slices.Equal(got, want) {
		w.Errorf("changed: %q, want %q", got, want)
	}
	return changed
}

// events are those of a subject that were not read yet, as "previous_status status".
func (w *watched) events(subject string, want ...string) {
	w.Helper()
	got := testkit.Scalar[[]string](w, w.conn, `
with read as (delete from events where project_id = 'ops' and subject = $1
              returning seq, concat_ws(' ', data->>'previous_status', data->>'status') as text)
select coalesce(array_agg(text order by seq), '{}') from read`, subject)
	if !slices.Equal(got, want) {
		w.Errorf("events of %s: %q, want %q", subject, got, want)
	}
}

func (w *watched) node(name string) domain.Node {
	w.Helper()
	n, err := w.Get(w.Context(), name)
	if err != nil {
		w.Fatal(err)
	}
	return n
}

func (w *watched) exec(sql string) { w.Helper(); write(w.T, w.conn, sql) }

// heartbeat is one of a host's agent, with a token that was just made for it.
func (w *watched) heartbeat(name string, status domain.NodeStatus, reason string) (domain.Node, error) {
	w.Helper()
	if err := w.SetToken(w.Context(), name, []byte(name), "boss"); err != nil {
		w.Fatal(err)
	}
	return w.Heartbeat(w.Context(), name, []byte(name), status, reason)
}

// TestObserveNodes: a host that stops reporting is suspect, down, and up again, with an event for each.
func TestObserveNodes(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b")
	w.reported("a", time.Second)
	w.reported("b", 2*time.Second)
	w.observed(limits, "a up", "b up")
	w.events("b") // it is new and up
	w.observed(limits)
	for _, step := range []struct {
		ago    time.Duration
		status string
	}{{74 * time.Second, ""}, {76 * time.Second, "suspect"}, {181 * time.Second, "down"}, {0, "up"}} {
		w.reported("b", step.ago)
		previous := string(w.node("b").Status)
		if step.status == "" {
			w.observed(limits)
			w.events("b")
			continue
		}
		outage := w.node("b").NotUpSince
		after := w.observed(limits, "b "+step.status)[0]
		since := after.StatusSince
		if after.NotUpSince.IsZero() != (step.status == "up") ||
			step.status == "down" && !after.NotUpSince.Equal(outage) {
			t.Errorf("%s: it is not up since %s, before %s", step.status, after.NotUpSince, outage)
		}
		w.events("b", previous+" "+step.status)
		w.observed(limits)
		if n := w.node("b"); !n.StatusSince.Equal(since) || n.Servers != 2 || n.ServiceID != "s-b" ||
			(n.StatusReason == "") != (step.status == "up") {
			t.Errorf("%s: %+v", step.status, n)
		}
	}
	if n := w.node("a"); n.Status != domain.NodeUp || !n.IsUp || !n.DownSince.IsZero() {
		t.Errorf("the other host: %+v", n)
	}
}

// TestObserveByAnotherClock: when Nova's clock is not the database's, a host has reported when its time differs.
func TestObserveByAnotherClock(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		w := watch(t, "a", "b")
		w.reported("a", skew)
		w.reported("b", skew)
		w.hosts[0].IsUp, w.hosts[1].IsUp = true, true
		w.observed(limits, "a up", "b up")
		w.exec("update nodes set reported_at = reported_at - interval '2 minutes'")
		w.hosts[0].SeenAt = w.hosts[0].SeenAt.Add(time.Minute)
		w.observed(limits, "b suspect")
		w.events("a")
	}
}

// TestObserveForcedDown: Nova's word that a host is down counts, though its nova-compute reports.
func TestObserveForcedDown(t *testing.T) {
	t.Parallel()
	w := watch(t, "a")
	w.reported("a", 0)
	w.hosts[0].IsUp = false
	w.observed(limits, "a up")
	w.exec("update nodes set down_since = down_since - interval '76 seconds'")
	w.observed(limits, "a suspect")
	w.exec("update nodes set down_since = down_since - interval '181 seconds'")
	if n := w.observed(limits, "a down")[0]; n.StatusReason != "Nova says that it is down" {
		t.Errorf("got %+v", n)
	}
	w.hosts[0].IsUp = true
	w.observed(limits, "a up")
	w.events("a", "up suspect", "suspect down", "down up")
}

// TestObserveSpares: a host whose status URL answers, or whose agent reports, is not down.
func TestObserveSpares(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b", "c")
	for _, name := range []string{"a", "b", "c"} {
		w.reported(name, 200*time.Second)
	}
	w.exec("insert into nodes (name, agent_at, agent_status) values ('b', now(), 'up')")
	answering := limits
	answering.Answering = []string{"a"}
	changed := w.observed(answering, "a suspect", "b suspect", "c down")
	for n, want := range []string{"; its status URL answers", "; its agent reports", "Z"} {
		if !strings.HasSuffix(changed[n].StatusReason, want) {
			t.Errorf("%s: %q", changed[n].Name, changed[n].StatusReason)
		}
	}
	w.exec("update nodes set agent_at = now() - interval '80 seconds' where name = 'b'")
	w.observed(limits, "a down", "b down")
}

// TestObserveVanished: a host that Nova has no more is down and stays until it is deleted. When it comes back, its
// events go on.
func TestObserveVanished(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b")
	w.reported("a", 0)
	w.reported("b", 0)
	w.observed(limits, "a up", "b up")
	both := w.hosts
	w.hosts = w.hosts[:1]
	w.observed(limits)
	w.exec("update nodes set reported_at = now() - interval '181 seconds' where name = 'b'")
	if n := w.observed(limits, "b down")[0]; n.StatusReason != "Nova has no such host any more" || n.IsUp ||
		n.Servers != 0 {
		t.Errorf("got %+v", n)
	}
	noError(t, w.Delete(t.Context(), "b"))
	w.observed(limits)
	w.hosts = both
	w.reported("b", 100*time.Second)
	w.observed(limits, "b suspect")
	w.events("b", "up down", "unknown suspect")
}

// TestObserveMuted: a host without alerts writes no events.
func TestObserveMuted(t *testing.T) {
	t.Parallel()
	w := watch(t, "a")
	must(w.Describe(t.Context(), "a", domain.NodeSettings{}, 0))(t)
	w.reported("a", 0)
	w.observed(limits, "a up")
	w.reported("a", 200*time.Second)
	w.observed(limits, "a down")
	must(w.SetCordoned(t.Context(), "a", true, domain.CordonMark+"x"))(t)
	w.events("a")
}

// TestObserveCordon: whose a disabled host is follows from Nova's reason, and what Nova said before a cordon does not
// undo it.
func TestObserveCordon(t *testing.T) {
	t.Parallel()
	w := watch(t, "a")
	w.reported("a", 0)
	w.observed(limits, "a up")
	stale := limits
	stale.AsOf = testkit.Scalar[time.Time](t, w.conn, "select clock_timestamp()")
	n, err := w.SetCordoned(t.Context(), "a", true, domain.CordonMark+"a disk")
	if err != nil || n.Enabled || n.CordonedAt.IsZero() || n.DisabledReason != "cloudfn: a disk" {
		t.Fatalf("%+v: %v", n, err)
	}
	w.events("a", "up up")
	w.observed(stale)
	if n := w.node("a"); n.Enabled || n.CordonedAt.IsZero() {
		t.Errorf("undone by what Nova said before: %+v", n)
	}
	must(w.SetCordoned(t.Context(), "a", true, domain.CordonMark+"a disk"))(t)
	w.events("a") // it was cordoned already
	w.observed(limits)
	if n := w.node("a"); !n.Enabled || !n.CordonedAt.IsZero() {
		t.Errorf("someone has enabled it: %+v", n)
	}
	w.events("a", "up up")
	w.hosts[0].IsEnabled, w.hosts[0].DisabledReason = false, "mine"
	w.observed(limits)
	if n := w.node("a"); n.Enabled || !n.CordonedAt.IsZero() || n.DisabledReason != "mine" {
		t.Errorf("someone has disabled it: %+v", n)
	}
	w.hosts[0].DisabledReason = domain.CordonMark + "by another replica"
	w.observed(limits)
	if n := w.node("a"); n.CordonedAt.IsZero() {
		t.Errorf("cordoned by us, and not recorded: %+v", n)
	}
}

// TestObserveAgents: what an agent says counts while it is fresh, also of a host that Nova does not have.
func TestObserveAgents(t *testing.T) {
	t.Parallel()
	w := watch(t, "a")
	w.reported("a", 0)
	for _, name := range []string{"a", "metal"} {
		if n, err := w.heartbeat(name, domain.NodeSuspect, "a disk fails"); err != nil || n.Version != 1 {
			t.Fatalf("%+v: %v", n, err)
		}
	}
	changed := w.observed(limits, "a suspect", "metal suspect")
	for _, n := range changed {
		if n.StatusReason != "its agent says: a disk fails" {
			t.Errorf("%s: %q", n.Name, n.StatusReason)
		}
	}
	w.events("metal", "unknown suspect")
	for _, name := range []string{"a", "metal"} {
		must(w.heartbeat(name, domain.NodeUp, ""))(t)
	}
	w.observed(limits, "a up", "metal up")
	w.exec("update nodes set agent_at = now() - interval '100 seconds'")
	w.observed(limits, "metal suspect")
	w.exec("update nodes set agent_at = now() - interval '200 seconds'")
	w.observed(limits, "metal down")
	if n := w.node("metal"); !strings.HasPrefix(n.StatusReason, "its agent has not reported since 2") {
		t.Errorf("got %q", n.StatusReason)
	}
}

// TestObserveCellDown: a host of a cell that is down stays as it was, however long that takes.
func TestObserveCellDown(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b")
	w.reported("a", time.Second)
	w.reported("b", time.Second)
	w.observed(limits, "a up", "b up")
	w.exec("update nodes set reported_at = now() - interval '1 hour', updated_at = now() - interval '1 hour'")
	before := w.hosts[1]
	w.hosts[1] = domain.ComputeHost{Name: "b", CellDown: true}
	w.observed(limits)
	w.events("b")
	if n := w.node("b"); n.Status != domain.NodeUp || n.StatusReason != "its cell does not answer" || !n.IsUp ||
		!n.Enabled || n.Zone != "nova" || n.ServiceID != "s-b" || n.Servers != 2 {
		t.Errorf("got %+v", n)
	}
	w.hosts[1] = before
	w.reported("b", time.Second)
	w.observed(limits)
	if n := w.node("b"); n.StatusReason != "" {
		t.Errorf("its cell answers again: %+v", n)
	}
}

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
		noError(t, w.SetDetails(ctx, marker))
		if d, err := w.Details(ctx); err != nil || d.Marker != marker || time.Since(d.At).Abs() > time.Minute {
			t.Errorf("after a page: %+v %v", d, err)
		}
	}
	noError(t, w.MonitorFailed(ctx, "unavailable"))
	w.events("monitor/nodes", "failed")
}

// TestForcedDown: a host that an admin has forced down in Nova is down immediately, whatever its agent, its status URL
// and its own reports say, and up as soon as that is taken back.
func TestForcedDown(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b")
	w.reported("a", time.Second)
	w.reported("b", time.Second)
	w.observed(limits, "a up", "b up")
	must(w.heartbeat("a", domain.NodeUp, ""))(t)
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
	check(w.MonitorFailed(ctx, "unavailable"))
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
	noError(t, w.SetProbed(ctx, []string{"a", "b"}, nil))
	noError(t, w.SetProbed(ctx, nil, []string{"b"}))
	a, b, c := w.node("a"), w.node("b"), w.node("c")
	if a.AnsweredAt.IsZero() || !b.AnsweredAt.IsZero() || b.ProbedAt.Before(a.ProbedAt) || !c.ProbedAt.IsZero() {
		t.Errorf("%+v\n%+v\n%+v", a, b, c)
	}
}
