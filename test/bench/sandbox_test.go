//go:build bench

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// The sandbox is shared and may be restarted for a moment by someone else, so what fails is tried again.
const (
	mostOutage = 2 * time.Minute
	pause      = 2 * time.Second
	bootLimit  = 6 * time.Minute
)

// waitForSandbox waits until Keystone, Nova, Glance and Neutron answer.
func waitForSandbox(t *testing.T) {
	t.Helper()
	account, err := sandboxCloud(t).Account(sandboxConfig(t), openstack.Credentials{})
	must(t, err)
	again(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		session, err := account.Login(ctx)
		if err != nil {
			return err
		}
		_, nova := session.Flavors(ctx)
		_, glance := session.Images(ctx, "")
		_, neutron := session.Networks(ctx)
		return errors.Join(nova, glance, neutron)
	})
}

// waitForKeystone waits until Keystone answers.
func waitForKeystone(t *testing.T) {
	t.Helper()
	cloud := sandboxCloud(t)
	again(t, func() error { return cloud.Reachable(context.Background()) })
}

// again calls until there is no error, for as long as an outage may last.
func again(t *testing.T, call func() error) {
	t.Helper()
	for end := time.Now().Add(mostOutage); ; time.Sleep(pause) {
		err := call()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the sandbox does not come back: %v", err)
		}
	}
}

func sandboxConfig(t *testing.T) openstack.Config {
	t.Helper()
	return openstack.Config{Cloud: "collector", ConfigFile: testkit.CloudsYAML(t)}
}

// sandboxCloud is the sandbox as our functions see it.
func sandboxCloud(t *testing.T) *openstack.Cloud {
	t.Helper()
	cloud, err := openstack.New(sandboxConfig(t), openstack.Options{})
	must(t, err)
	return cloud
}

// rig is a database, and a connection to it.
type rig struct {
	*pgx.Conn
	t   *testing.T
	url string
}

func newRig(t *testing.T) rig {
	t.Helper()
	url := testkit.Database(t)
	return rig{testkit.Connect(t, url), t, url}
}

func (r rig) run(sql string, args ...any) {
	r.t.Helper()
	_, err := r.Exec(context.Background(), sql, args...)
	must(r.t, err)
}

func (r rig) count(sql string, args ...any) int {
	r.t.Helper()
	return testkit.Scalar[int](r.t, r.Conn, sql, args...)
}

// open opens the database as a replica does.
func (r rig) open(conns int32, tracer pgx.QueryTracer) *postgres.DB {
	r.t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(r.url), MaxConns: conns}, tracer)
	must(r.t, err)
	r.t.Cleanup(db.Close)
	return db
}

// pool opens the database without any of our code.
func (r rig) pool(conns int32) *pgxpool.Pool {
	r.t.Helper()
	cfg, err := pgxpool.ParseConfig(r.url)
	must(r.t, err)
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	must(r.t, err)
	r.t.Cleanup(pool.Close)
	return pool
}

// function starts a function in a process of its own, with an account of the cloud at the URL.
func (r rig) function(name, cloud string, more map[string]string) *testkit.Process {
	r.t.Helper()
	env := map[string]string{
		"FUNCTION_TARGET": name, "DATABASE_URL": r.url, "HOST": "127.0.0.1", "EVENT_KEY": testkit.EventKey,
		"OS_AUTH_URL": cloud + "/v3", "OS_USERNAME": "service", "OS_PASSWORD": "secret",
		"OS_USER_DOMAIN_ID": "default", "OS_PROJECT_NAME": "admin", "OS_PROJECT_DOMAIN_ID": "default",
	}
	maps.Copy(env, more)
	return testkit.Spawn(r.t, env)
}

// tick sends a function its event, with which it must succeed.
func tick(t *testing.T, p *testkit.Process, function string) {
	t.Helper()
	if a := p.Tick(t, function); a.Status != http.StatusNoContent {
		p.Kill()
		t.Fatalf("%s answered %d %s: %s", function, a.Status, a.Body, p.Log())
	}
}

// fetch makes one GET and reads the answer to its end. The client keeps its connection.
func fetch(client *http.Client, url string, header http.Header) (body []byte, took float64, err error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	req.Header = header
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	took = ms(time.Since(began))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, resp.Status, body)
	}
	return body, took, err
}

func newClient() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
}

// boot makes n servers in one call and waits until Nova lists them all as ACTIVE. It polls seldom and for little
// (unlike testkit's Boot, which logs in and lists in detail each time): polling takes the processors from
// what is waited for. The servers go with the project.
func boot(t *testing.T, project *testkit.Project, n int) (ids []string) {
	t.Helper()
	facts := testkit.Sandbox(t)
	nova := testkit.Compute(t, project.Login(t))
	opts := servers.CreateOpts{
		Name: "bench", FlavorRef: facts.FlavorID, ImageRef: facts.ImageID, Min: n, Max: n, Networks: []servers.Network{
			{UUID: facts.NetworkID},
		},
	}
	_, err := servers.Create(context.Background(), nova, opts, nil).Extract()
	must(t, err)
	for end := time.Now().Add(bootLimit); len(ids) < n; time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d servers are ACTIVE after %s", len(ids), n, bootLimit)
		}
		again(t, func() error {
			ids, err = active(nova)
			return err
		})
	}
	return ids
}

func active(nova *gophercloud.ServiceClient) (ids []string, err error) {
	pages, err := servers.ListSimple(nova, servers.ListOpts{Status: "ACTIVE"}).AllPages(context.Background())
	if err != nil {
		return nil, err
	}
	found, err := servers.ExtractServers(pages)
	for _, s := range found {
		ids = append(ids, s.ID)
	}
	return ids, err
}
