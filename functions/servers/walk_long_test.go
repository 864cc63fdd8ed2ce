package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const crowded = 1100

// rounds is how often the list is walked with each of the three limits; CLOUDFN_WALKS changes it. With 7 there are 21
// walks.
func rounds(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("CLOUDFN_WALKS"))
	if err != nil {
		return 7
	}
	t.Logf("%d rounds", n)
	return n
}

// TestLongWalkOfManyServers walks over all pages of 1100 servers while Nova creates a server every 0.3 s and deletes
// one every second: each server that was there all the time is listed exactly once. So does poll-instances' own walk.
// It runs for 15 minutes on two cores.
func TestLongWalkOfManyServers(t *testing.T) {
	testkit.Heavy(t)
	p := testkit.BorrowProject(t)
	liftQuota(t, p)
	there := cloneServer(t, p, p.BootWithAddress(t, "original", 1)[0].ID, crowded)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	session := testkit.Session(t, "admin") // as poll-instances has it
	c := churn{nova: testkit.Compute(t, p.Login(t)), facts: testkit.Sandbox(t)}
	c.nova.Microversion = "2.37" // networks: none
	t.Cleanup(func() { c.trim(t, 0) })
	short := 0
	for round := range rounds(t) {
		for _, limit := range []int{1000, 333, 100} {
			began := time.Now()
			stop := c.run(t.Context())
			pages, seen := walkAll(t, app, limit)
			stop()
			c.trim(t, 20)
			short += check(t, fmt.Sprintf("round %d, limit %d", round, limit), there, seen, pages, limit)
			t.Logf("round %d, limit %4d: %3d pages, %d servers in %s; made %d, deleted %d", round, limit, len(pages),
				len(seen), time.Since(began).Round(time.Millisecond), c.created, c.deleted)
		}
		stop := c.run(t.Context())
		seen := map[string]int{}
		for marker := ""; ; {
			page, next, err := session.AllServers(t.Context(), p.ID, marker)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range page {
				seen[s.ID]++
			}
			if marker = next; next == "" {
				break
			}
		}
		stop()
		c.trim(t, 20)
		check(t, "AllServers", there, seen, nil, 1000)
	}
	t.Logf("%d pages in the middle of a list were shorter than their limit", short)
}

// walkAll follows `next` to the end, and gives the pages' lengths and how often each server was listed.
func walkAll(t *testing.T, app *testkit.Client, limit int) (pages []int, seen map[string]int) {
	t.Helper()
	seen = map[string]int{}
	for next := "/v1/servers?limit=" + strconv.Itoa(limit); next != ""; {
		var page struct {
			Servers []struct{ ID string }
			Next    *string
		}
		get(t, app, next, &page)
		for _, s := range page.Servers {
			seen[s.ID]++
		}
		pages = append(pages, len(page.Servers))
		if next = ""; page.Next != nil {
			u, err := url.Parse(*page.Next)
			if err != nil {
				t.Fatal(err)
			}
			next = u.RequestURI()
		}
	}
	return pages, seen
}

// get reads an answer without checking it against the OpenAPI file: other tests do that, and it takes a second for such
// a page.
func get(t *testing.T, app *testkit.Client, path string, into any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, app.URL+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Auth-Token", app.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v", path, resp.StatusCode, err)
	}
}

// check says which servers were lost or doubled, and how many pages before the last were short.
func check(t *testing.T, name string, there map[string]bool, seen map[string]int, pages []int, limit int) (short int) {
	t.Helper()
	lost, doubled := 0, 0
	for id := range there {
		switch seen[id] {
		case 0:
			lost++
		case 1:
		default:
			doubled++
		}
	}
	if lost+doubled > 0 {
		t.Errorf("%s: %d of %d servers are missing, %d are listed twice; pages %v", name, lost, len(there), doubled,
			pages)
	}
	for n, length := range pages {
		if n < len(pages)-1 && length < limit {
			short++
		}
	}
	return short
}

// churn makes and deletes servers by Nova itself.
type churn struct {
	nova  *gophercloud.ServiceClient
	facts testkit.Facts

	mu               sync.Mutex
	made             []string // not deleted yet, oldest first
	created, deleted int
}

// run makes a server every 0.3 s and deletes one every second, until it is stopped or the test ends. It skips
// calls while Nova is slow, so that they do not pile up.
func (c *churn) run(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	slots := make(chan struct{}, 8)
	var all sync.WaitGroup
	every := func(pause time.Duration, do func()) {
		all.Go(func() {
			for tick := time.NewTicker(pause); ; {
				select {
				case <-tick.C:
					select {
					case slots <- struct{}{}:
						all.Go(func() { do(); <-slots })
					default:
					}
				case <-ctx.Done():
					tick.Stop()
					return
				}
			}
		})
	}
	every(300*time.Millisecond, c.create)
	every(time.Second, c.delete)
	return func() { cancel(); all.Wait() }
}

func (c *churn) create() {
	opts := servers.CreateOpts{Name: "churn", FlavorRef: c.facts.FlavorID, ImageRef: c.facts.ImageID, Networks: "none"}
	server, err := servers.Create(context.Background(), c.nova, opts, nil).Extract()
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = append(c.made, server.ID)
	c.created++
}

func (c *churn) delete() {
	c.mu.Lock()
	if len(c.made) == 0 {
		c.mu.Unlock()
		return
	}
	id := c.made[0]
	c.made = c.made[1:]
	c.mu.Unlock()
	if servers.Delete(context.Background(), c.nova, id).ExtractErr() == nil {
		c.mu.Lock()
		c.deleted++
		c.mu.Unlock()
	}
}

// trim deletes all but a few of the servers, so that they do not become thousands.
func (c *churn) trim(t *testing.T, left int) {
	t.Helper()
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for n := len(c.made) - left; n > 0; n-- {
		slots <- struct{}{}
		all.Go(func() {
			c.delete()
			<-slots
		})
	}
	all.Wait()
}
