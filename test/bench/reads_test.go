//go:build bench

package bench

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	tokenCount  = 20
	perToken    = 100  // callers with the same token, at the same time, at first
	tokenHot    = 1000 // checks after that, and in each round
	tokenCold   = 20   // checks at Keystone in each round
	tokenRounds = 6
)

// TestToken holds a token check that is remembered against one with Keystone, and counts the calls to Keystone
// when many come concurrently.
func TestToken(t *testing.T) {
	waitForKeystone(t)
	cloud := sandboxCloud(t)
	tokens, project := make([]string, tokenCount), testkit.NewProject(t)
	for i := range tokens {
		tokens[i] = project.Token(t)
	}
	var calls atomic.Int64
	authenticator := auth.New(auth.Config{},
		func(ctx context.Context, token domain.Secret) (domain.Identity, error) {
			calls.Add(1)
			return cloud.Validate(ctx, token)
		})
	storm(t, authenticator, tokens)
	for i := range tokenHot {
		check(t, authenticator, tokens[i%len(tokens)])
	}
	if n := calls.Load(); n != tokenCount {
		t.Errorf("keystone was called %d times for %d tokens", n, tokenCount)
	}
	name := fmt.Sprintf("Keystone calls for %d tokens x %d concurrently + %d : tokens", tokenCount, perToken, tokenHot)
	compare("2b", name, float64(calls.Load()), tokenCount, showCount, atMost(1))

	var hot, cold []float64
	alternate(tokenRounds,
		func() {
			for i := range tokenHot {
				hot = append(hot, timed(func() { check(t, authenticator, tokens[i%len(tokens)]) }))
			}
		},
		func() {
			for i := range tokenCold {
				cold = append(cold, timed(func() { validate(t, cloud, tokens[i%len(tokens)]) }))
			}
		})
	compare("2a", "token check, remembered, p50 : Keystone each time", median(hot), median(cold), showMS, atMost(0.01))
}

// storm checks every token for the first time, by many concurrent callers.
func storm(t *testing.T, authenticator *auth.Authenticator, tokens []string) {
	start := make(chan struct{})
	var group sync.WaitGroup
	for _, token := range tokens {
		for range perToken {
			group.Go(func() {
				<-start
				check(t, authenticator, token)
			})
		}
	}
	close(start)
	group.Wait()
}

func check(t *testing.T, authenticator *auth.Authenticator, token string) {
	r := &http.Request{Header: http.Header{"X-Auth-Token": {token}}}
	if _, err := authenticator.Authenticate(context.Background(), r); err != nil {
		t.Errorf("a good token was refused: %v", err)
	}
}

func validate(t *testing.T, cloud *openstack.Cloud, token string) {
	if _, err := cloud.Validate(context.Background(), domain.Secret(token)); err != nil {
		t.Errorf("a good token was refused: %v", err)
	}
}

const (
	proxyCalls   = 300    // a minute: each tick comes once
	proxyVersion = "2.69" // the version of our GET to Nova
)

// TestProxy holds GET /v1/servers/{id} through us against the same GET to Nova itself, one after the other.
// Ours sends Nova the same, and checks the token, looks the instance up and writes the request's row besides.
func TestProxy(t *testing.T) {
	waitForSandbox(t)
	project := testkit.NewProject(t)
	id := boot(t, project, 1)[0]
	env := testkit.Env(t, testkit.Database(t), nil)
	daemon := testkit.Spawn(t, env)
	env["FUNCTION_TARGET"] = "servers"
	function := testkit.Spawn(t, env)
	nova := strings.TrimSuffix(testkit.Compute(t, project.Login(t)).Endpoint, "/")
	token := project.Token(t)

	direct := &getter{url: nova + "/servers/" + id, header: http.Header{
		"X-Auth-Token": {token}, "X-Openstack-Nova-Api-Version": {proxyVersion}, "Accept": {"application/json"},
	}}
	alone := &getter{url: function.URL + "/v1/servers/" + id, header: http.Header{"X-Auth-Token": {token}}}
	together := &getter{url: daemon.URL + "/v1/servers/" + id, header: direct.header}
	sides := []*getter{direct, alone, together}
	for _, g := range sides {
		g.client = newClient()
		g.warm(t)
	}
	alternate(proxyCalls, func() { direct.get(t) }, func() { alone.get(t) }, func() { together.get(t) })

	for _, p := range []int{50, 99} {
		goal := atMost(1.10)
		if p == 99 {
			goal = atMost(1.20)
		}
		line := func(name string, g *getter) {
			we, they := percentile(g.times, p), percentile(direct.times, p)
			compare("3", fmt.Sprintf("GET /v1/servers/{id}, %s, p%d of %d : the same GET to Nova", name, p, proxyCalls),
				we, they, showMS, goal)
		}
		line("function", alone)
		line("daemon", together)
	}
}

// getter makes one GET again and again.
type getter struct {
	client *http.Client
	url    string
	header http.Header
	times  []float64
}

// warm makes the first calls, which connect, learn the token and read the catalog. A daemon's first tick has
// ended when they have.
func (g *getter) warm(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		g.get(t)
	}
	g.times = nil
}

func (g *getter) get(t *testing.T) {
	t.Helper()
	again(t, func() error {
		_, took, err := fetch(g.client, g.url, g.header)
		if err == nil {
			g.times = append(g.times, took)
		}
		return err
	})
}

const (
	decodeServers = 1000
	decodeRounds  = 5
)

// decoder is one way to read a thousand servers.
type decoder struct {
	read                 func() int // gives how many servers it saw
	took, bytes, objects []float64
}

// TestDecode holds our ways to read 1000 servers against gophercloud's, on the same page from the same fake
// Nova: the list that GET /v1/servers shows, and the two reads that counting is made of.
func TestDecode(t *testing.T) {
	fake := newFakeCloud(t, decodeServers)
	session := fakeSession(t, fake)
	ctx := context.Background()
	list := &decoder{read: func() int {
		page, _, err := session.Servers(ctx, domain.ServerQuery{Limit: decodeServers})
		must(t, err)
		return len(page)
	}}
	count := &decoder{read: func() (n int) {
		must(t, session.CurrentServers(ctx, "", func(domain.CurrentServer) { n++ }))
		return n
	}}
	peer := &decoder{read: func() int { return len(exporterServers(t, fake.URL)) }}
	transfer := &decoder{read: func() int {
		resp, err := http.Get(fake.URL + "/compute/servers/detail")
		must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		must(t, err)
		_ = resp.Body.Close()
		return decodeServers
	}}
	alternate(decodeRounds, list.round(t), peer.round(t), count.round(t), transfer.round(t))
	name := fmt.Sprintf("%d servers, page of %.2f MB", decodeServers, float64(len(fake.detail[""]))/1e6)
	compareDecoders("4a", "list of "+name, list, peer)
	name = fmt.Sprintf("%d servers, pages of %.2f MB", decodeServers,
		float64(len(fake.usage[""])+len(fake.unlaunched))/1e6)
	compareDecoders("4b", "count of "+name, count, peer)
	compare("4c", "list of 1000 servers, processor time : the same page thrown away", median(list.took),
		median(transfer.took), showMS, shown)
}

func compareDecoders(number, name string, ours, peer *decoder) {
	line := func(what string, we, they []float64, show func(float64) string, goal target) {
		compare(number, name+", "+what+" : gophercloud AllPages", median(we), median(they), show, goal)
	}
	line("processor time", ours.took, peer.took, showMS, atMost(1.0/15))
	line("allocated", ours.bytes, peer.bytes, func(v float64) string { return showMB(v / 1e6) }, atMost(1.0/15))
	line("allocations", ours.objects, peer.objects, func(v float64) string { return fmt.Sprintf("%.0f", v) },
		atMost(1.0/15))
}

// round measures one way with testing.Benchmark. Decoding is nothing but work for the processor, so that is what
// is measured, with what the garbage collector used: it stands still when others use the machine.
func (d *decoder) round(t *testing.T) func() {
	must(t, flag.Set("test.benchtime", "500ms"))
	return func() {
		var busy float64
		r := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			busy = processorTime()
			for b.Loop() {
				if n := d.read(); n != decodeServers {
					t.Fatalf("%d servers instead of %d", n, decodeServers)
				}
			}
			busy = processorTime() - busy
		})
		d.took = append(d.took, busy/float64(r.N))
		d.bytes = append(d.bytes, float64(r.AllocedBytesPerOp()))
		d.objects = append(d.objects, float64(r.AllocsPerOp()))
	}
}

func fakeSession(t *testing.T, fake *fakeCloud) *openstack.Session {
	t.Helper()
	cloud, err := openstack.New(openstack.Config{AuthURL: fake.URL + "/v3", Interface: "public"}, openstack.Options{})
	must(t, err)
	return cloud.As("a-token", "p")
}

// exporterServers reads all servers of the fake cloud as openstack-exporter does (exporters/nova.go,
// ListAllServers).
func exporterServers(t testing.TB, url string) []servers.Server {
	all, err := listAllServers(url)
	must(t, err)
	return all
}

func listAllServers(url string) ([]servers.Server, error) {
	provider := &gophercloud.ProviderClient{TokenID: "a-token", HTTPClient: http.Client{Timeout: 10 * time.Minute}}
	nova := &gophercloud.ServiceClient{
		ProviderClient: provider, Endpoint: url + "/compute/", Type: "compute", Microversion: "2.87",
	}
	pages, err := servers.List(nova, servers.ListOpts{AllTenants: true}).AllPages(context.Background())
	if err != nil {
		return nil, err
	}
	return servers.ExtractServers(pages)
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Fatal(err)
	}
}
