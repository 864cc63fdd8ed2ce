//go:build bench

package bench

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

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
	report(result{
		number: "4c", name: "list of 1000 servers, processor time : the same page thrown away",
		ours: showMS(median(list.took)),
		peer: showMS(median(transfer.took)), ratio: median(list.took) / median(transfer.took),
	})
}

func compareDecoders(number, name string, ours, peer *decoder) {
	line := func(what string, we, they []float64, show func(float64) string, goal target) {
		report(result{
			number: number, name: name + ", " + what + " : gophercloud AllPages", ours: show(median(we)),
			peer:  show(median(they)),
			ratio: median(we) / median(they), target: goal,
		})
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
