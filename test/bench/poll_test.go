//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	pollServers = 1000
	pollChanged = 10 // 1 %
	pollRounds  = 5
	pollDelay   = 5 * time.Millisecond // the sandbox's Nova takes 20 ms and more for a server by its id
)

// TestPoll holds one event of the whole function poll-instances, in a process of its own with Postgres, against one GET
// for each server, on a fake Nova: 1000 tracked servers, and 1 % of them changed since the last poll.
func TestPoll(t *testing.T) {
	fake := newFakeCloud(t, pollServers)
	fake.changed = detailPage(fake.servers[:pollChanged], "")
	fake.usage = map[string][]byte{"": []byte(`{"tenant_usages": []}`)} // of a time before there was a server
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	track(t, conn, fake.servers)
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "poll-instances", "DATABASE_URL": database, "HOST": "127.0.0.1",
		"EVENT_KEY":   testkit.EventKey,
		"OS_AUTH_URL": fake.URL + "/v3", "OS_USERNAME": "poller", "OS_PASSWORD": "secret",
		"OS_USER_DOMAIN_ID": "default",
		"OS_PROJECT_NAME":   "admin", "OS_PROJECT_DOMAIN_ID": "default", "POLL_FOLLOW": "0s",
	})
	tick := func() {
		if a := p.Tick(t, "poll-instances"); a.Status != http.StatusNoContent {
			p.Kill()
			t.Fatalf("got %d: %s", a.Status, p.Log())
		}
	}
	tick() // logs in; that is once in an hour
	nova := &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{TokenID: "a-token"}, Endpoint: fake.URL + "/compute/",
	}
	for _, delay := range []time.Duration{0, pollDelay} {
		fake.delay.Store(int64(delay))
		var ours, peer polled
		alternate(pollRounds,
			func() {
				_,
					err := conn.Exec(context.Background(),
					"update instances set state = 'building' where position < $1", pollChanged)
				must(t, err)
				ours.count(fake, tick)
				if moved := testkit.Scalar[int](t, conn,
					"select count(*)::int from instances where state = 'active' and position < $1", pollChanged); moved != pollChanged {
					t.Errorf("%d of %d changes were seen", moved, pollChanged)
				}
			},
			func() {
				peer.count(fake, func() {
					for _, s := range fake.servers {
						_, err := servers.Get(context.Background(), nova, s.id).Extract()
						must(t, err)
					}
				})
			})
		if median(ours.requests) > 10 || median(peer.requests) != pollServers {
			t.Errorf("%.0f requests against %.0f", median(ours.requests), median(peer.requests))
		}
		ours.compare(peer, delay)
	}
}

// polled is what one way took in each round.
type polled struct{ took, requests []float64 }

func (p *polled) count(fake *fakeCloud, call func()) {
	n, _ := fake.count(func() { p.took = append(p.took, timed(call)) })
	p.requests = append(p.requests, float64(n))
}

func (p *polled) compare(peer polled, delay time.Duration) {
	name := fmt.Sprintf("poll %d servers, %d changed (fake Nova), ", pollServers, pollChanged)
	number := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	line := func(what string, we, they []float64, show func(float64) string, goal target) {
		report(result{
			number: "8", name: name + what + " : one GET each", ours: show(median(we)), peer: show(median(they)),
			ratio: median(we) / median(they), target: goal,
		})
	}
	if delay == 0 {
		line("requests", p.requests, peer.requests, number, atMost(1.0/100))
		line("time, our work alone", p.took, peer.took, showMS, shown)
		return
	}
	line(fmt.Sprintf("time, when Nova takes %s for an answer", delay), p.took, peer.took, showMS, atMost(1.0/20))
}

// track makes an instance of each server, as it stands.
func track(t *testing.T, conn *pgx.Conn, servers []fakeServer) {
	t.Helper()
	rows := make([][]any, len(servers))
	for i, s := range servers {
		rows[i] = []any{s.project, i, s.id, "active", "ACTIVE"}
	}
	ctx := context.Background()
	_,
		err := conn.Exec(ctx,
		"alter table instances alter id set default gen_random_uuid(), alter name set default 'x', alter origin set default 'connected'")
	must(t, err)
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"instances"}, []string{
		"project_id", "position", "server_id", "state", "raw_status",
	}, pgx.CopyFromRows(rows))
	must(t, err)
}
