//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	remoteClouds  = 10 // besides the one that hangs
	remoteEach    = 10 // connections to each
	remoteServers = 100
	remoteRounds  = 3
	remoteDelay   = 20 * time.Millisecond // what a Nova takes for an answer
)

// TestRemote compares one event of the function run-connections, in a process of its own with Postgres, with reading
// one connection after the other: a hundred connections to ten fake clouds. Ten older ones are to a cloud that takes
// requests and never answers. The sequential reader leaves these out, because it would never reach the next one.
func TestRemote(t *testing.T) {
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	hanging := newHangingCloud(t)
	for range remoteEach {
		connectTo(t, database, conn, hanging.URL, nil)
	}
	clouds := make([]*fakeCloud, remoteClouds)
	for n := range clouds {
		clouds[n] = newFakeCloud(t, remoteServers)
		clouds[n].delay.Store(int64(remoteDelay))
		for range remoteEach {
			connectTo(t, database, conn, clouds[n].URL, clouds[n].servers)
		}
	}
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "run-connections", "DATABASE_URL": database, "HOST": "127.0.0.1",
		"EVENT_KEY":              testkit.EventKey,
		"CONNECTION_PRIVATE_KEY": testkit.ConnectionPrivateKey,
		"OS_AUTH_URL":            clouds[0].URL + "/v3", "OS_USERNAME": "trustee", "OS_PASSWORD": "secret",
		"OS_USER_DOMAIN_ID": "default",
	})
	count := func() (requests float64) {
		for _, cloud := range clouds {
			requests += float64(cloud.requests.Swap(0))
		}
		return requests
	}
	const all = remoteClouds * remoteEach
	var ours, peer polled
	alternate(remoteRounds,
		func() {
			_,
				err := conn.Exec(context.Background(),
				"update connections set read_at = null, swept_at = null, not_before = null")
			must(t, err)
			release := hanging.hang()
			count()
			var tick sync.WaitGroup
			ours.took = append(ours.took, timed(func() {
				tick.Go(func() { _, _ = p.TryTick(t, "run-connections") })
				testkit.Eventually(t, 30*time.Second, "all but those of the cloud that hangs are read", func() bool {
					return testkit.Scalar[int](t, conn,
						"select count(*)::int from connections where swept_at is not null") == all
				})
			}))
			ours.requests = append(ours.requests, count())
			release()
			tick.Wait()
		},
		func() {
			count()
			peer.took = append(peer.took, timed(func() {
				for _, cloud := range clouds {
					nova := &gophercloud.ServiceClient{
						ProviderClient: &gophercloud.ProviderClient{TokenID: "a-token"},
						Endpoint:       cloud.URL + "/compute/",
					}
					for range remoteEach {
						pages, err := servers.List(nova, servers.ListOpts{}).AllPages(context.Background())
						must(t, err)
						_, err = servers.ExtractServers(pages)
						must(t, err)
					}
				}
			}))
			peer.requests = append(peer.requests, count())
		})
	name := fmt.Sprintf("follow %d connections to %d clouds, %d more to one that hangs (fake Novas of %s), ", all,
		remoteClouds, remoteEach, remoteDelay)
	report(result{
		number: "12", name: name + "time until all are read : one list after the other",
		ours: showMS(median(ours.took)), peer: showMS(median(peer.took)),
		ratio: median(ours.took) / median(peer.took), target: atMost(1.0 / 2),
	})
	report(result{
		number: "12", name: name + "requests : one list after the other",
		ours: fmt.Sprintf("%.0f", median(ours.requests)), peer: fmt.Sprintf("%.0f", median(peer.requests)),
		ratio: median(ours.requests) / median(peer.requests), target: shown,
	})
}

// connectTo stores a connection of a project of its own to a cloud, with an instance of each server.
func connectTo(t *testing.T, database string, conn *pgx.Conn, url string, servers []fakeServer) {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	must(t, err)
	defer db.Close()
	id := uuid.Must(uuid.NewV7())
	c := domain.Connection{
		ID: id, ProjectID: id.String(), DomainID: "d", UserID: "u", Kind: domain.CredentialConnection,
		DelegationID: id.String(), AuthURL: url,
		Actions: []domain.Permission{domain.MayConnect}, UsableBy: []string{}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
		ActsAs:    domain.ActsAs{ProjectID: "p"},
	}
	key, err := seal.ParsePublicKey(testkit.ConnectionPublicKey)
	must(t, err)
	c.Secret, err = key.Seal(c.SealedFor(), "secret")
	must(t, err)
	_, err = postgres.Connections{DB: db}.Create(context.Background(), c)
	must(t, err)
	ids := []string{"hidden"}
	for _, s := range servers {
		ids = append(ids, s.id)
	}
	_, err = conn.Exec(context.Background(), `
insert into instances (project_id, id, position, name, server_id, state, origin, connection_id, remote)
select $1, gen_random_uuid(), 0, 'x', s, 'active', 'connected', $2, true from unnest($3::text[]) s`, c.ProjectID, c.ID, ids[min(1, len(servers)):])
	must(t, err)
}

// hangingCloud takes requests and answers none before it is released: then it breaks the connection.
type hangingCloud struct {
	*httptest.Server
	mu    sync.Mutex
	until chan struct{}
}

func newHangingCloud(t *testing.T) *hangingCloud {
	t.Helper()
	h := &hangingCloud{until: make(chan struct{})}
	h.Server = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		h.mu.Lock()
		until := h.until
		h.mu.Unlock()
		<-until
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hangingCloud) hang() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until := make(chan struct{})
	h.until = until
	return sync.OnceFunc(func() { close(until) })
}
