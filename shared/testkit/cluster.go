package testkit

import (
	"context"
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

// Stop crashes the cluster.
func (c *Cluster) Stop(t testing.TB) { t.Helper(); c.script(t, "crash") }

// Start starts it again.
func (c *Cluster) Start(t testing.TB) { t.Helper(); c.script(t, "up") }

func (c *Cluster) script(t testing.TB, verb string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(Root(), "scripts", "postgres"), verb)
	cmd.Env = append(cmd.Environ(), "CLOUDFN_POSTGRES="+c.data)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("scripts/postgres %s: %v\n%s", verb, err, out)
	}
	return lastLine(out)
}
