package knative

import (
	"encoding/base64"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What Postgres takes by default: max_connections, without the three that it keeps for superusers.
const postgresTakes = 97

// TestConnectionsFit adds up the worst case: every pod at its most, in two revisions of every function together, as
// while a new version is rolled out.
func TestConnectionsFit(t *testing.T) {
	t.Parallel()
	objects := render(t, "production")
	pool, most := setting(t, "default_pool_size"), setting(t, "max_db_connections")
	clients := setting(t, "max_client_conn")
	services := knativeServices(objects)
	pooled := 0
	for name, f := range declared(t) {
		if perPod(t, objects, services[name]) != f.Connections() {
			t.Errorf("%s: a pod opens %d connections, and %d are declared", name, perPod(t, objects, services[name]),
				f.Connections())
		}
		if f.Kind == "event" && f.Connections() > 2 {
			t.Errorf("%s opens %d connections, mostly to wait for others", name, f.Connections())
		}
		pooled += 2 * f.Scale.MaxPods * f.Connections()
	}
	bouncers := ofKind(objects, "Deployment")["pgbouncer"].Spec.Replicas
	const migrate = 2 // a Job opens one, and a second Job may wait for it
	if total := bouncers*most + migrate; bouncers == 0 || pool == 0 || pool > most || total > postgresTakes {
		t.Errorf("Postgres gets %d connections: %d PgBouncers with %d each", total, bouncers, most)
	}
	if pooled == 0 || pooled > clients { // one PgBouncer must carry them while the other is down
		t.Errorf("a PgBouncer takes %d clients, and pods open up to %d connections", clients, pooled)
	}
}

// perPod is how many connections a pod of the Service opens at most.
func perPod(t *testing.T, objects []object, service object) int {
	t.Helper()
	value := ""
	for _, config := range ofKind(objects, "ConfigMap") {
		if own := config.Data["DATABASE_MAX_CONNS"]; own != "" {
			value = own
		}
	}
	for _, v := range service.Spec.Template.Spec.Containers[0].Env {
		if v.Name == "DATABASE_MAX_CONNS" {
			value = v.Value
		}
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// setting is a number in PgBouncer's configuration.
func setting(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile("components/pgbouncer/pgbouncer.ini")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + name + ` = (\d+)`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("pgbouncer.ini does not set %s", name)
	}
	n, _ := strconv.Atoi(string(found[1]))
	return n
}

// TestPgBouncerHasOneSection: a second [pgbouncer] would bring every setting back to PgBouncer's default.
func TestPgBouncerHasOneSection(t *testing.T) {
	t.Parallel()
	begin := regexp.MustCompile(`(?m)^\s*\[pgbouncer\]`)
	for file, want := range map[string]int{
		"components/pgbouncer/pgbouncer.ini": 1, "components/pgbouncer/pgbouncer.yaml": 0,
		"overlays/production/secrets/database.ini": 0,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(begin.FindAll(text, -1)); n != want {
			t.Errorf("%s begins the section [pgbouncer] %d times, want %d", file, n, want)
		}
	}
}

// TestWhoBypassesPgBouncer: only the owner of the schema, who needs locks of a session. Only migrate is that.
func TestWhoBypassesPgBouncer(t *testing.T) {
	t.Parallel()
	through := regexp.MustCompile(`:6432/\w+\?default_query_exec_mode=cache_describe$`)
	for _, overlay := range []string{"local", "production"} {
		for name, secret := range ofKind(render(t, overlay), "Secret") {
			for key, value := range secret.Data {
				url, err := base64.StdEncoding.DecodeString(value)
				if err != nil {
					t.Fatal(err)
				}
				isOwner := strings.HasPrefix(name, "cloudfn-database-owner-")
				if strings.HasPrefix(string(url), "postgres://") && through.Match(url) == isOwner {
					t.Errorf("%s: %s of %s goes to the wrong one of Postgres and PgBouncer", overlay, key, name)
				}
			}
		}
	}
}
