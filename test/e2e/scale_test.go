//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const mostRejected = 60 // requests of one client, because its project has too many in flight

// load sends requests from that many concurrent clients until stop is closed or each has sent its share (0 = no end).
// It gives the request ids that were answered with 200, and every other answer. A client whose project has too many
// requests in flight sends its own again.
func load(t testing.TB, c *testkit.Client, path string, clients, each int, stop <-chan struct{}) (ids []string,
	failed []string,
) {
	t.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			rejected := 0
			for n := 0; each == 0 || n < each; n++ {
				select {
				case <-stop:
					return
				default:
				}
				answer, err := c.Try(t, http.MethodGet, path, "")
				mu.Lock()
				switch {
				case err == nil && answer.Status == http.StatusTooManyRequests && rejected < mostRejected:
					rejected++
					n--
				case err != nil:
					failed = append(failed, err.Error())
				case answer.Status != http.StatusOK:
					failed = append(failed, fmt.Sprintf("%d %s", answer.Status, answer.Body))
				default:
					ids = append(ids, answer.Header.Get("X-Request-Id"))
				}
				mu.Unlock()
				if answer.Status == http.StatusTooManyRequests {
					time.Sleep(time.Second) // Retry-After
				}
			}
		})
	}
	group.Wait()
	return ids, failed
}

// inLog checks that the request log has exactly one row for each of the ids.
func inLog(t testing.TB, ids []string) {
	t.Helper()
	conn := testkit.Connect(t, databaseURL)
	rows := testkit.Scalar[int](t, conn, "select count(*) from requests where request_id = any($1)", ids)
	distinct := testkit.Scalar[int](t, conn,
		"select count(distinct request_id) from requests where request_id = any($1)", ids)
	if rows != len(ids) || distinct != len(ids) {
		t.Errorf("%d requests were answered, the log has %d rows for %d of them", len(ids), rows, distinct)
	}
}

func noneFailed(t testing.TB, failed []string) {
	t.Helper()
	if len(failed) > 0 {
		t.Errorf("%d answers failed, such as %s", len(failed), failed[0])
	}
}

// TestScaleUp keeps 200 requests in flight, and deletes pods meanwhile: several pods answer, no answer
// fails, and the request log has every one.
func TestScaleUp(t *testing.T) {
	project := testkit.NewProject(t)
	c := client(t, "servers", project.Token(t))
	toZero(t, "servers")
	done := make(chan struct{})
	peak, deleted := 0, 0
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(3 * time.Second):
			}
			peak = max(peak, ready("servers"))
			list, _ := pods("servers")
			if len(list) < 2 || deleted == 4 {
				continue
			}
			victim := list[rand.IntN(len(list))].Metadata.Name
			if _, err := try("kubectl", "-n", namespace, "delete", "pod", victim, "--wait=false"); err == nil {
				deleted++
			}
		}
	})
	began := time.Now()
	ids, failed := load(t, c, "/v1/servers?limit=1", 200, 6, nil)
	took := time.Since(began)
	close(done)
	watch.Wait()
	noneFailed(t, failed)
	inLog(t, ids)
	fmt.Printf("\n200 concurrent clients: %d answers in %s, %d failed, %d pods at the most, %d deleted meanwhile\n",
		len(ids)+len(failed), took.Round(time.Second), len(failed), peak, deleted)
	if peak < 2 || deleted == 0 {
		t.Errorf("there were %d pods at the most, %d were deleted: this shows nothing", peak, deleted)
	}
}

const (
	loadRate    = 200 // requests a second
	loadFor     = 20 * time.Second
	loadTenants = 3
)

// TestAutoscaling sends 200 requests a second to functions that are at zero, as several tenants do: from addresses and
// projects of their own. They are deployed as declared, with a fake OpenStack: the sandbox's Nova does not serve such a
// rate. Pods go up, no request fails, and they go back to zero, with the times that Knative has by default. A
// hello-world gets the same.
func TestAutoscaling(t *testing.T) {
	cloud := newRecordedCloud(t)
	paths := map[string]string{"resources": "/v1/resources", "servers": "/v1/servers", "hello": "/"}
	services := []string{"hello", "resources", "servers"}
	kn(t, "service", "apply", "load-hello", "--image", helloImage, "--scale", "..8", "--user", "65532",
		"--security-context", "strict", "--request", "cpu=5m,memory=32Mi", "--limit", "memory=256Mi")
	t.Cleanup(func() { kn(t, "service", "delete", "load-hello", "--wait") })
	for _, function := range services[1:] {
		clone(t, function, "load-"+function, nil, "OS_AUTH_URL", cloud.URL)
	}
	var tenants []*loadTenant
	for n := range loadTenants {
		tenants = append(tenants, newLoadTenant(t, fmt.Sprintf("127.0.0.%d", n+2)))
	}
	bases := map[string]string{}
	for _, service := range services {
		bases[service] = kubectl(t, "get", "ksvc", "load-"+service, "-o", "jsonpath={.status.url}")
		reach(t, bases[service], "")
		for _, tenant := range tenants { // the fake records what it answers from now on
			if err := tenant.get(t.Context(), bases[service]+paths[service]); err != nil {
				t.Fatalf("%s: %v", service, err)
			}
		}
	}
	toZero(t, "load-hello", "load-resources", "load-servers")
	autoscaleByDefault(t)
	samples := startSampler(t)
	for _, service := range services {
		began := time.Now()
		times, failed := sendAt(loadRate, loadFor, func(n int) error {
			return tenants[n%len(tenants)].get(context.Background(), bases[service]+paths[service])
		})
		noneFailed(t, failed)
		fmt.Printf("\n%s, %s: %d requests at %d a second, %d failed, p50 %s, p99 %s, %d pods at the most\n", t.Name(),
			service, len(times)+len(failed), loadRate, len(failed), percentile(times, 50), percentile(times, 99),
			samples.most("load-"+service))
		fmt.Printf("  its pods: %s\n", samples.bySecond("load-"+service, began))
		if service != "hello" && samples.most("load-"+service) < 2 {
			t.Errorf("%s had one pod: this shows nothing", service)
		}
	}
	ended := time.Now()
	toZero(t, "load-hello", "load-resources", "load-servers")
	fmt.Printf("  all are at zero %s later\n", time.Since(ended).Round(time.Second))
}

// loadTenant is a client at an address of its own, with a token of a project of its own.
type loadTenant struct {
	client *http.Client
	token  string
}

func newLoadTenant(t *testing.T, address string) *loadTenant {
	t.Helper()
	project := testkit.BorrowProject(t)
	project.Boot(t, "listed", 2)
	front, err := url.Parse(ingress)
	if err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{
		MaxIdleConnsPerHost: loadRate,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, net.JoinHostPort(front.Hostname(), "80"))
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &loadTenant{&http.Client{Transport: transport, Timeout: 2 * time.Minute}, project.Token(t)}
}

// get sends a request. Every answer but 200 is an error.
func (l *loadTenant) get(ctx context.Context, at string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("X-Auth-Token", l.token)
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %s", resp.StatusCode, body)
	}
	return err
}

// sendAt sends that many requests a second, whether or not those before are answered, and returns what each took, and
// why others failed.
func sendAt(perSecond int, period time.Duration, send func(n int) error) (times []time.Duration, failed []string) {
	var mu sync.Mutex
	var group sync.WaitGroup
	began := time.Now()
	for n := range perSecond * int(period/time.Second) {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
		group.Go(func() {
			sent := time.Now()
			err := send(n)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err.Error())
				return
			}
			times = append(times, time.Since(sent))
		})
	}
	group.Wait()
	return times, failed
}

// percentile is 0 if there are no times.
func percentile(times []time.Duration, p int) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)].Round(time.Millisecond)
}

// manyPods is how many pods share one Postgres.
var manyPods = flag.Int("many-pods", 12, "how many pods TestManyPods starts; 30 give those of docs/measurements.md")

// poolSize is how many connections each pod may open (DATABASE_MAX_CONNS).
const poolSize = 4

// TestManyPods: many pods under load open no more connections than pods x pool, and no request fails. It goes to
// Postgres directly, as all pods of the test cluster do (scripts/e2e).
func TestManyPods(t *testing.T) {
	t.Cleanup(func() { resume(t) })
	suspend(t) // at a tick, event functions start from zero, on the processors that the load needs
	conn := testkit.Connect(t, databaseURL)
	connections := func() (n int) { // 0 when Postgres does not answer; this runs in a goroutine, too
		_ = conn.QueryRow(context.Background(), `select count(*) from pg_stat_activity
			where datname = current_database() and usename = 'cloudfn_stats'`).Scan(&n)
		return n
	}
	others := connections() // of pods that still run
	pods := strconv.Itoa(*manyPods)
	clone(t, "stats", "many", map[string]string{
		"autoscaling.knative.dev/min-scale": pods,
		"autoscaling.knative.dev/max-scale": pods,
	})
	testkit.Eventually(t, minutes(5), fmt.Sprintf("%d pods are ready", *manyPods),
		func() bool { return ready("many") == *manyPods })
	c := client(t, "many", testkit.NewProject(t).Token(t))
	done, peak := make(chan struct{}), make(chan int, 1)
	go func() {
		most := 0
		defer func() { peak <- most }()
		for {
			most = max(most, connections())
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	ids, failed := load(t, c, "/v1/stats", 300, 8, nil)
	close(done)
	most, limit := <-peak, others+*manyPods*poolSize
	noneFailed(t, failed)
	inLog(t, ids)
	fmt.Printf("\n%s: %d answers, %d failed, %d connections to Postgres at the most, limit %d\n",
		t.Name(), len(ids)+len(failed), len(failed), most, limit)
	if most > limit || most == 0 {
		t.Errorf("there were %d connections, the limit is %d", most, limit)
	}
}
