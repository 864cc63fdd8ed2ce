package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/quotasets"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const crowded = 1100

// rounds is how often the list is walked with each of the three limits; CLOUDFN_WALKS changes it.
func rounds(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("CLOUDFN_WALKS"))
	if err != nil {
		return 2
	}
	t.Logf("%d rounds", n)
	return n
}

// TestLongWalkOfManyServers walks over all pages of 1100 servers while Nova creates a server every 0.3 s and deletes
// one every second: each server that was there all the time is listed exactly once. So does poll-instances' own walk.
// It runs for 7 minutes on two busy cores.
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

// serverTables are the tables of Nova's cell with a row for each server; their column for its id is instance_uuid.
var serverTables = []string{"instance_extra", "instance_info_caches", "instance_system_metadata"}

// liftQuota lets the project have any number of servers.
func liftQuota(t *testing.T, p *testkit.Project) {
	t.Helper()
	all := -1
	opts := quotasets.UpdateOpts{Instances: &all, Cores: &all, RAM: &all}
	nova := testkit.Compute(t, testkit.Login(t, "admin"))
	if _, err := quotasets.Update(context.Background(), nova, p.ID, opts).Extract(); err != nil {
		t.Fatal(err)
	}
}

// cloneServer adds n clones of a server to Nova's database and returns their ids: Nova itself needs twenty minutes for
// a thousand. The clones are on no host, so no compute service checks them. Each is a second older than the one before.
func cloneServer(t *testing.T, p *testkit.Project, serverID string, n int) map[string]bool {
	t.Helper()
	clones := "project_id = '" + p.ID + "' and display_name like 'clone-%'"
	t.Cleanup(func() { removeClones(t, clones) })
	rows := fmt.Sprintf(`(select seq, concat(left(sha1(concat(seq, '%[1]s')), 8), '-c0de-4000-8000-',
		substr(sha1(concat(seq, '%[1]s')), 9, 12)) uuid from seq_1_to_%[2]d) c`, serverID, n)
	created := "date_sub(s.created_at, interval seq second)"
	sql := []string{cloneRows(t, "nova.instances", "uuid", rows, serverID, map[string]string{
		"uuid": "c.uuid", "display_name": "concat('clone-', seq)", "host": "null", "node": "null",
		"created_at": created, "launched_at": created,
	})}
	uuid := map[string]string{"instance_uuid": "c.uuid"}
	for _, table := range serverTables {
		sql = append(sql, cloneRows(t, "nova."+table, "instance_uuid", rows, serverID, uuid))
	}
	sql = append(sql, cloneRows(t, "nova_api.instance_mappings", "instance_uuid", rows, serverID, uuid))
	testkit.NovaSQL(t, strings.Join(sql, "; "))
	made := map[string]bool{}
	for id := range strings.FieldsSeq(testkit.NovaSQL(t, "select uuid from nova.instances where "+clones)) {
		made[id] = true
	}
	if len(made) != n {
		t.Fatalf("%d clones, want %d", len(made), n)
	}
	return made
}

// cloneRows returns a statement that inserts a server's row once for each clone, with the changed columns.
func cloneRows(t *testing.T, table, column, clones, serverID string, changed map[string]string) string {
	t.Helper()
	schema, name, _ := strings.Cut(table, ".")
	columns := testkit.NovaSQL(t, fmt.Sprintf("select column_name from information_schema.columns "+
		"where table_schema = '%s' and table_name = '%s' and column_name <> 'id'", schema, name))
	var names, values []string
	for name := range strings.FieldsSeq(columns) {
		value, ok := changed[name]
		if !ok {
			value = "s.`" + name + "`"
		}
		names, values = append(names, "`"+name+"`"), append(values, value)
	}
	return fmt.Sprintf("insert into %s (%s) select %s from %s s, %s where s.%s = '%s'",
		table, strings.Join(names, ", "), strings.Join(values, ", "), table, clones, column, serverID)
}

func removeClones(t *testing.T, clones string) {
	t.Helper()
	began := time.Now()
	in := " where instance_uuid in (select uuid from nova.instances where " + clones + ")"
	statements := []string{"delete from nova_api.instance_mappings" + in}
	for _, table := range serverTables {
		statements = append(statements, "delete from nova."+table+in)
	}
	statements = append(statements, "delete from nova.instances where "+clones)
	testkit.NovaSQL(t, strings.Join(statements, "; "))
	t.Logf("removed the clones in %s", time.Since(began).Round(time.Millisecond))
}

// TestLongShelveUnshelveSnapshot of a tracked server: one image for each id, and no calls when there is nothing to do.
func TestLongShelveUnshelveSnapshot(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	t.Cleanup(func() { p.DeleteImages(t) })
	server := p.Boot(t, "kept", 1)[0].ID
	database := testkit.Database(t)
	conn, cloud := testkit.Connect(t, database), p.Session(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	id := track(t, conn, p, server, domain.InstanceActive)

	key := uuid.New()
	body := fmt.Sprintf(`{"id":%q,"action":"snapshot","name":"before the upgrade"}`, key)
	snapshot := func() (a actionAnswer) {
		t.Helper()
		answer := app.Post(t, "/v1/servers/"+id+"/actions", body)
		answer.JSON(t, &a)
		a.status = answer.Status
		return a
	}
	made := snapshot()
	if !made.isAccepted(domain.InstanceActive) || made.ImageID == "" {
		t.Fatalf("snapshot: %+v", made)
	}
	loseResults(t, conn)
	for _, when := range []string{"its result is lost", "its result is stored"} {
		if a := snapshot(); a.status != 200 || !a.Changed || a.ImageID != made.ImageID {
			t.Errorf("the same snapshot when %s: %+v", when, a)
		}
	}
	testkit.Eventually(t, time.Minute, "the image is active", func() bool {
		image, err := cloud.Image(t.Context(), made.ImageID)
		if err != nil || image.Name != "before the upgrade" {
			t.Fatal(image, err)
		}
		return image.Status == "active"
	})
	of := domain.Server{ID: server, ProjectID: p.ID}
	if images, err := cloud.ImagesOf(t.Context(), key, of); err != nil || len(images) != 1 {
		t.Errorf("the images of the action are %v, %v", images, err)
	}
	p.Quiet(t, server)

	if a := sendAction(t, app, server, "unshelve"); !a.isIdle(domain.InstanceActive) {
		t.Errorf("unshelve while active: %+v", a)
	}
	if a := sendAction(t, app, server, "shelve"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("shelve: %+v", a)
	}
	p.Await(t, server, "SHELVED_OFFLOADED")
	if a := sendAction(t, app, server, "shelve"); !a.isIdle(domain.InstanceShelved) {
		t.Errorf("shelve while shelved: %+v", a)
	}
	if a := sendAction(t, app, server, "snapshot"); !a.isRejected(domain.InstanceShelved) {
		t.Errorf("snapshot while shelved: %+v", a)
	}
	many := app.Post(t, "/v1/servers/actions", fmt.Sprintf(`{"action":"unshelve","ids":[%q]}`, id))
	if many.Status != 202 {
		t.Errorf("unshelve one of many: %d %s", many.Status, many.Body)
	}
	p.Await(t, server, "ACTIVE")
	if a := sendAction(t, app, id, "stop"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("stop: %+v", a)
	}
	p.Await(t, server, "SHUTOFF")
	if a := sendAction(t, app, id, "unshelve"); !a.isRejected(domain.InstanceStopped) {
		t.Errorf("unshelve while stopped: %+v", a)
	}
	actors := testkit.Scalar[string](t, conn, `
select string_agg(data->'actor'->>'action', ' ' order by seq) from events where subject = $1`, id)
	if actors != "shelve unshelve stop" {
		t.Errorf("the events are of %s", actors)
	}
}
