package contract_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// eventCase is what an operation, or one of its examples, needs to write events.
type eventCase struct {
	none   string         // why it writes none; "" = it does
	weight int            // for how many events something else counts that it writes
	sql    string         // changes what was stored for it
	set    map[string]any // fields of the body
	query  []string
	etag   string
}

// eventsPerMinute is EVENT_RATE_LIMIT in tests.
const eventsPerMinute = 100_000

const ofThisCloud = "update instances set connection_id = null, seq = 1" // the first event is stored

var eventCases = map[string]eventCase{
	"actOnServer":                 {sql: ofThisCloud},
	"actOnServer confirm":         {none: "no resize waits for it", sql: ofThisCloud},
	"actOnServer lock":            {none: "a lock has no event", sql: ofThisCloud},
	"actOnServer snapshot":        {none: "the server stays as it is", sql: ofThisCloud},
	"actOnServers stop":           {sql: ofThisCloud},
	"cancelDrain":                 {none: "watch-nodes ends the drain"},
	"changeConnection":            {etag: `"0"`},
	"changeConnection secret":     {none: "a trust has no secret", etag: `"0"`},
	"changeLease":                 {etag: `"1"`, sql: "update leases set status = 'active'"},
	"changeNode":                  {none: "settings of a node have no event", etag: `"1"`},
	"changeServer":                {none: "poll-instances writes the event of a new name"},
	"changeServer reusable":       {none: "whether an instance is reusable has no event"},
	"checkConnection":             {none: "run-connections checks"},
	"connectServer delegated":     {none: "the server is connected already"},
	"connectServer own":           {sql: "truncate instances cascade"},
	"cordonNode":                  {set: map[string]any{"force": true}},
	"createCallback":              {none: "deliver-events writes the first one"},
	"createConnection":            {set: map[string]any{"expires_at": time.Now().Add(time.Hour).UTC()}},
	"createConnection credential": {none: "its cloud is not among CONNECTION_CLOUDS"},
	"createFlavor":                {weight: 20},
	"createLease":                 {set: map[string]any{"start": "now"}},
	"createLease hosts":           {none: "no host is free"},
	"createNodeToken":             {none: "a token has no event"},
	"deleteCallback":              {none: "no one gets an event of it"},
	"deleteFlavor":                {none: "nothing is stored", etag: `"1"`},
	"addSecurityGroup":            {none: "Neutron alone has ports"},
	"addSecurityGroupRule":        {none: "Neutron alone has security groups"},
	"attachInterface":             {none: "Neutron alone has ports"},
	"attachFloatingIP":            {none: "Neutron alone has floating IPs"},
	"createFloatingIP":            {none: "Neutron alone has floating IPs"},
	"deleteFloatingIP":            {none: "Neutron alone has floating IPs"},
	"detachFloatingIP":            {none: "Neutron alone has floating IPs"},
	"attachVolume":                {none: "Nova alone has attachments"},
	"createSecurityGroup":         {none: "Neutron alone has security groups"},
	"deleteSecurityGroup":         {none: "Neutron alone has security groups"},
	"detachInterface":             {none: "Neutron alone has ports"},
	"removeSecurityGroup":         {none: "Neutron alone has ports"},
	"removeSecurityGroupRule":     {none: "Neutron alone has security groups"},
	"createKeyPair":               {none: "Nova alone has key pairs"},
	"createVolume":                {none: "Cinder alone has volumes"},
	"deleteKeyPair":               {none: "Nova alone has key pairs"},
	"deleteVolume":                {none: "Cinder alone has volumes"},
	"detachVolume":                {none: "Nova alone has attachments"},
	"deleteManaged":               {etag: `"1"`},
	"deleteNode":                  {none: "nothing is stored", sql: "update nodes set pool = ''"},
	"deleteServer deallocate":     {query: []string{"mode=deallocate"}, sql: ofThisCloud},
	"deleteServer disconnect":     {query: []string{"mode=disconnect"}, sql: ofThisCloud},
	"drainNode":                   {set: map[string]any{"force": true}},
	"grantConnectionRequest":      {set: map[string]any{"expires_at": nil}},
	"launch":                      {set: map[string]any{"id": nil}},
	"launch leased":               {set: map[string]any{"networks": []string{"private"}}},
	"launch reserved":             {none: "the reservation is unknown"},
	"makeNodeReservable":          {none: "the node's status stays", sql: "update nodes set pool = ''"},
	"makeNodeUnreservable":        {none: "the node's status stays"},
	"openServerConsole":           {none: "a console has no event"},
	"putFlavor":                   {weight: 20, etag: `"1"`},
	"putManaged":                  {etag: `"1"`},
	"redeliver":                   {none: "CALLBACK_REDELIVER_RATE_LIMIT"},
	"requestConnection":           {sql: "delete from connection_requests"},
	"resumeConnection":            {sql: "update connections set suspended_at = now()"},
	"revokeNodeToken":             {none: "a token has no event"},
	"rollbackManaged":             {etag: `"1"`, sql: anotherRevision},
	"rotateCallbackSecret":        {none: "a secret has no event"},
	"testCallback":                {none: "CALLBACK_TEST_RATE_LIMIT"},
	"testNode":                    {none: "run-leases tests"},
	"uncordonNode":                {sql: "update nodes set enabled = false, cordoned_at = now()"},
}

const anotherRevision = `
insert into managed_revisions (project_id, managed_id, number, spec, user_id)
select project_id, managed_id, 2, '{"count": 1}', user_id from managed_revisions where number = 1
on conflict do nothing;
update managed set revision = 2`

// TestEveryEventCounts: each event that a request writes, and each delivery of it, counts for the limit of the
// project, whichever statement writes it. A small cloud serves the examples of every operation that writes.
func TestEveryEventCounts(t *testing.T) {
	t.Parallel()
	m := newMatrix(t, slices.DeleteFunc(slices.Clone(everyFunction), func(f run.Function) bool {
		return run.Describe(f).Kind != "http" // what event functions write counts for no one
	})...)
	m.cloud = smallCloud()
	if _, err := m.pool.Exec(t.Context(), "insert into callbacks (project_id, id, user_id, url, status, secret) "+
		"values ($1, gen_random_uuid(), $2, 'https://receiver.example.com/all', 'verified', 's')",
		ownProject, matrixUser); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(m.operations)) {
		o := m.operations[name]
		if !withToken(o) || isEvent(o) || o.method == http.MethodGet || o.method == http.MethodHead {
			continue
		}
		examples := o.exampleNames()
		for n := range eventCases {
			of, example, isOne := strings.Cut(n, " ")
			if isOne && of == name && !slices.Contains(examples, example) {
				examples = append(examples, example)
			}
		}
		for _, example := range examples {
			m.count(t, o, example)
		}
	}
}

// count sends an example, and compares what it has written with what counts for its project.
func (m *matrix) count(t *testing.T, o operation, example string) {
	t.Helper()
	a, c := m.prepare(t, o, example)
	body := o.body(t, a)
	before := m.startCounting(t)
	answer := m.client.As(projectAdmin().token()).Do(t, o.method, o.target(t, a), body, o.header(a, body)...)
	testkit.Eventually(t, time.Minute, "no order is worked on", func() bool {
		return testkit.Scalar[bool](t, m.pool, "select not exists (select from orders where claimed_until > now())")
	})
	after := m.written(t)
	events, deliveries := after.events-before.events, after.deliveries-before.deliveries
	counted := int(after.usedUp.Sub(before.usedUp) / (time.Minute / eventsPerMinute))
	what := fmt.Sprintf("%s %s: got %d, %d events with %d deliveries are written, and %d count", o.OperationID,
		example, answer.Status, events, deliveries, counted)
	if counted != events+deliveries+c.weight {
		t.Error(what)
	}
	if (counted > 0) == (c.none != "") {
		t.Errorf("%s; want none: %q: %s", what, c.none, answer.Body)
	}
}

// prepare stores what an example needs, and gives what to send.
func (m *matrix) prepare(t *testing.T, o operation, example string) (variant, eventCase) {
	t.Helper()
	if _, err := m.pool.Exec(t.Context(), "delete from nodes; delete from managed; "+
		"update connections set status = 'lost'"); err != nil {
		t.Fatal(err)
	}
	names := m.insert(t, ownProject)
	c, found := eventCases[o.OperationID+" "+example]
	if !found {
		c = eventCases[o.OperationID]
	}
	if _, err := m.pool.Exec(t.Context(), c.sql); err != nil {
		t.Fatal(err)
	}
	a := m.variant(o, names)
	if o.RequestBody != nil && example != "" {
		a.example = example
	}
	if c.set != nil {
		a.set = c.set
	}
	if c.query != nil {
		a.query = c.query
	}
	if c.etag != "" {
		a.header = append(a.header, "If-Match", c.etag)
	}
	return a, c
}

// written is how many events and deliveries there are, and how far the limit of the project is used up. A callback's
// test and a redelivery have limits of their own.
type written struct {
	events, deliveries int
	usedUp             time.Time
}

// startCounting has the limit used up for most of a minute, so that no time counts while the request is served.
func (m *matrix) startCounting(t *testing.T) written {
	t.Helper()
	if _, err := m.pool.Exec(t.Context(), `
insert into rate_limits (name, source, used_up) values ('event', $1, now() + interval '50 seconds')
on conflict (name, source) do update set used_up = excluded.used_up`, ownProject); err != nil {
		t.Fatal(err)
	}
	return m.written(t)
}

func (m *matrix) written(t *testing.T) (w written) {
	t.Helper()
	err := m.pool.QueryRow(t.Context(), `
select (select count(*) from events where type <> '`+domain.CallbackTestEvent+`'),
       (select count(*) from deliveries where stream = event_project || '/' || subject),
       used_up
from rate_limits where name = 'event' and source = $1`, ownProject).Scan(&w.events, &w.deliveries, &w.usedUp)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// exampleNames are the names of the examples of the operation's body; one empty name without any.
func (o operation) exampleNames() []string {
	if o.RequestBody != nil {
		if media := o.RequestBody.Value.Content.Get("application/json"); media != nil && len(media.Examples) > 0 {
			return slices.Sorted(maps.Keys(media.Examples))
		}
	}
	return []string{""}
}
