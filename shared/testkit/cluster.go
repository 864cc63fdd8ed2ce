package testkit

import (
	"context"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// Cluster is a Postgres of the test's own, which it may stop.
type Cluster struct {
	URL  string
	data string
}

// NewCluster makes and starts a cluster with a migrated database.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{data: filepath.Join(t.TempDir(), "postgres")}
	c.URL = c.script(t, "up")
	t.Cleanup(func() { c.script(t, "purge") })
	must(postgres.Migrate(context.Background(), postgres.Config{URL: domain.Secret(c.URL), MaxConns: 1}))(t)
	t.Cleanup(func() {
		c.Start(t)
		NoSecrets(t, c.URL)
	})
	return c
}

// NewStandby makes a cluster that follows another one.
func NewStandby(t testing.TB, primary *Cluster) *Cluster {
	t.Helper()
	c := &Cluster{data: filepath.Join(t.TempDir(), "postgres")}
	c.Follow(t, primary)
	t.Cleanup(func() { c.script(t, "purge") })
	return c
}

// Socket returns the folder of its socket.
func (c *Cluster) Socket(t testing.TB) string {
	t.Helper()
	return must(url.Parse(c.URL))(t).Query().Get("host")
}

// Follow makes it a standby of a primary, and starts it. It must not have changes that the primary lacks.
func (c *Cluster) Follow(t testing.TB, primary *Cluster) {
	t.Helper()
	c.URL = c.script(t, "standby", primary.Socket(t))
}

// StartPgBouncer starts a PgBouncer before the cluster: port 6432 of its socket.
func (c *Cluster) StartPgBouncer(t testing.TB) {
	t.Helper()
	c.run(t, "pgbouncer", "up")
	t.Cleanup(func() { c.run(t, "pgbouncer", "down") })
}

// Promote makes a standby a primary.
func (c *Cluster) Promote(t testing.TB) { t.Helper(); c.script(t, "promote") }

// ShutDown stops the cluster when its standby has all of its changes.
func (c *Cluster) ShutDown(t testing.TB) { t.Helper(); c.script(t, "down") }

// Stop crashes the cluster.
func (c *Cluster) Stop(t testing.TB) { t.Helper(); c.script(t, "crash") }

// Start starts it again.
func (c *Cluster) Start(t testing.TB) { t.Helper(); c.script(t, "up") }

func (c *Cluster) script(t testing.TB, args ...string) string {
	t.Helper()
	return c.run(t, "postgres", args...)
}

func (c *Cluster) run(t testing.TB, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(Root(), "scripts", script), args...)
	cmd.Env = append(cmd.Environ(), "CLOUDFN_POSTGRES="+c.data)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("scripts/%s %v: %v\n%s", script, args, err, out)
	}
	return lastLine(out)
}
