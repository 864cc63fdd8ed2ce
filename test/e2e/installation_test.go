//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestImage builds the image without a registry, and checks it: not root, one static binary and little else, and an
// SBOM.
func TestImage(t *testing.T) {
	cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "image"))
	cmd.Env = append(os.Environ(), "KO_DOCKER_REPO=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("scripts/image: %v", err)
	}
	archive := filepath.Join(testkit.Root(), strings.TrimSpace(string(out)))
	info, err := os.Stat(archive)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 40<<20 {
		t.Errorf("the image has %d MB", info.Size()>>20)
	}
	files := untar(t, archive)
	type descriptor struct{ Digest string }
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct {
		Config struct {
			User       string
			Entrypoint []string
		}
	}
	blob := func(d descriptor) []byte { return files["blobs/"+strings.ReplaceAll(d.Digest, ":", "/")] }
	decode(t, files["index.json"], &index)
	decode(t, blob(index.Manifests[0]), &manifest)
	decode(t, blob(manifest.Config), &config)
	if config.Config.User != "65532" || config.Config.Entrypoint[0] != "/ko-app/functions" {
		t.Errorf("its configuration is %+v", config.Config)
	}
	binary := layer(t, blob(manifest.Layers[len(manifest.Layers)-1]))["ko-app/functions"]
	program, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		t.Fatalf("its binary: %v", err)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("its binary is not static")
		}
	}
	var modules int
	for name, content := range files {
		if strings.HasSuffix(name, ".json") && bytes.Contains(content, []byte("spdxVersion")) {
			modules = bytes.Count(content, []byte("pkg:golang/"))
		}
	}
	if modules < 20 {
		t.Errorf("its SBOM lists %d modules", modules)
	}
}

func decode(t testing.TB, document []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(document, into); err != nil {
		t.Fatalf("%v in %.200s", err, document)
	}
}

func untar(t testing.TB, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	return entries(t, file)
}

func layer(t testing.TB, blob []byte) map[string][]byte {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	return entries(t, unzipped)
}

func entries(t testing.TB, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimLeft(header.Name, "./")] = content
	}
}

// What an installation of TestIdle has, besides its stopped instances.
const (
	managedServers = 10
	idleCallbacks  = 20
	idleLeases     = 5
)

// installation is a project that uses all of cloudfn, and in which nothing happens.
type installation struct {
	owner, other *testkit.Project // the other one declares servers, and may order through the owner's connection
	stopped      []testkit.Server
	connection   string
	launch       *testkit.Client // made before the functions go to zero: making it wakes launch
	lease        string          // begins at starts; its server is shelved
	leased       testkit.Server
	starts       time.Time
}

// newInstallation makes one with real servers, and waits until all of it is as it should be. A lease begins after a
// time, which has to be enough for what is left to do of the installation.
func newInstallation(t *testing.T, stopped int, leaseIn time.Duration) *installation {
	t.Helper()
	began := time.Now()
	i := &installation{owner: testkit.NewProject(t), other: testkit.NewProject(t)}
	t.Cleanup(func() { forgetAll(t) })
	token := i.owner.Token(t)
	i.launch = client(t, "launch", "")

	i.declare(t)
	servers := i.owner.Boot(t, "idle", stopped+idleLeases+1) // no ports: half of what a server costs is Neutron's
	ids := connect(t, client(t, "servers", token), servers)
	i.stopped = servers[:stopped]
	stop(t, client(t, "servers", token), ids[:stopped])
	i.subscribe(t, token)
	i.delegate(t, token)
	for _, id := range ids[stopped : stopped+idleLeases] {
		post(t, client(t, "leases", token), "/v1/leases", http.StatusCreated, map[string]any{
			"name": "until tomorrow", "start": "now", "duration": "P1D", "reservations": instances(id),
		})
	}
	i.leased, i.starts = servers[stopped+idleLeases], time.Now().Add(leaseIn).Truncate(time.Second)
	i.lease = post(t, client(t, "leases", token), "/v1/leases", http.StatusCreated, map[string]any{
		"name": "begins soon", "start": i.starts.UTC().Format(time.RFC3339), "duration": "P1D",
		"reservations": instances(ids[stopped+idleLeases]),
	})
	i.settle(t, stopped)
	fmt.Printf("\n%s: %d stopped instances, %d managed servers, %d callbacks and %d leases took %s\n", t.Name(),
		stopped, managedServers, idleCallbacks, idleLeases+1, time.Since(began).Round(time.Second))
	return i
}

// forgetAll empties the database of what projects have. Otherwise functions would work for deleted projects while other
// tests run.
func forgetAll(t *testing.T) {
	const sql = `truncate instances, orders, actions, callbacks, leases, managed, managed_projects, connections cascade`
	if _, err := testkit.Connect(t, databaseURL).Exec(context.Background(), sql); err != nil {
		t.Error(err)
	}
}

// declare declares servers, which reconcile-managed makes in the background.
func (i *installation) declare(t *testing.T) {
	t.Helper()
	s := testkit.Sandbox(t)
	body, _ := json.Marshal(map[string]any{"spec": map[string]any{
		"count": managedServers, "flavor": s.Flavor, "image": s.Image, "networks": []string{s.Network},
	}})
	answer := client(t, "managed", i.other.Token(t)).Do(t, http.MethodPut, "/v1/managed/VirtualMachineDeployment/idle",
		string(body), "Content-Type", "application/json")
	if answer.Status != http.StatusCreated {
		t.Fatalf("declaring servers: %d %s", answer.Status, answer.Body)
	}
}

// subscribe makes callbacks for all events of the project.
func (i *installation) subscribe(t *testing.T, token string) {
	t.Helper()
	receiver := newReceiver(t)
	for n := range idleCallbacks {
		post(t, client(t, "callbacks", token), "/v1/callbacks", http.StatusCreated, map[string]any{
			"url": fmt.Sprintf("%s/%d", receiver.URL, n),
		})
	}
}

// delegate lets the other project's user order servers.
func (i *installation) delegate(t *testing.T, token string) {
	t.Helper()
	i.connection = post(t, client(t, "connections", token), "/v1/connections", http.StatusCreated, map[string]any{
		"kind": "trust", "roles": []string{"member"}, "actions": []string{"allocate", "start"},
		"usable_by": []string{i.other.UserID}, "expires_at": time.Now().AddDate(0, 0, 1).UTC().Format(time.RFC3339),
	})
}

// settle waits until there is nothing left to do. It reads the database: a function that gets a request has a pod.
func (i *installation) settle(t *testing.T, stopped int) {
	t.Helper()
	pool := testkit.Pool(t, databaseURL)
	for _, is := range []struct {
		what, sql string
		project   *testkit.Project
		want      int
	}{
		{"servers are stopped", "from instances where project_id = $1 and state = 'stopped'", i.owner, stopped},
		{
			"callbacks are verified", "from callbacks where project_id = $1 and status = 'verified'", i.owner,
			idleCallbacks,
		},
		{"leases are active", "from leases where project_id = $1 and status = 'active'", i.owner, idleLeases},
		{
			"server waits for its lease", "from instances where project_id = $1 and raw_status = 'SHELVED_OFFLOADED'",
			i.owner, 1,
		},
		{"deployment is ready", "from managed where project_id = $1 and status = 'ready'", i.other, 1},
	} {
		testkit.Eventually(t, minutes(6), fmt.Sprintf("%d %s", is.want, is.what), func() bool {
			time.Sleep(time.Second)
			return testkit.Scalar[int](t, pool, "select count(*)::int "+is.sql, is.project.ID) == is.want
		})
	}
}

// post sends an object, and returns the id of what it makes.
func post(t testing.TB, c *testkit.Client, path string, status int, object any) (id string) {
	t.Helper()
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	answer := c.Post(t, path, string(body))
	if answer.Status != status {
		t.Fatalf("POST %s: %d %s", path, answer.Status, answer.Body)
	}
	var made struct{ ID string }
	answer.JSON(t, &made)
	return made.ID
}

// instances are the reservations of a lease.
func instances(id string) []map[string]any {
	return []map[string]any{{"type": "instance", "instance_id": id}}
}

// connect has servers tracked, a few at a time, and returns the ids of their instances.
func connect(t *testing.T, c *testkit.Client, servers []testkit.Server) []string {
	t.Helper()
	ids := make([]string, len(servers))
	var group sync.WaitGroup
	slots := make(chan struct{}, 4)
	for n, s := range servers {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			answer, err := c.Try(t, http.MethodPost, "/v1/servers", fmt.Sprintf(`{"server_id": %q}`, s.ID),
				"Content-Type", "application/json")
			var made struct{ ID string }
			if err != nil || json.Unmarshal(answer.Body, &made) != nil || answer.Status != http.StatusCreated {
				t.Errorf("connecting: %v %d %s", err, answer.Status, answer.Body)
			}
			ids[n] = made.ID
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return ids
}

// stop has instances stopped, some with each request.
func stop(t *testing.T, c *testkit.Client, ids []string) {
	t.Helper()
	for some := range slices.Chunk(ids, 20) {
		body, _ := json.Marshal(map[string]any{"action": "stop", "ids": some})
		answer := c.Post(t, "/v1/servers/actions", string(body))
		var done struct {
			Results []struct {
				Changed bool
				Error   json.RawMessage
			}
		}
		answer.JSON(t, &done)
		for _, result := range done.Results {
			if !result.Changed {
				t.Fatalf("stopping: %d %s", answer.Status, answer.Body)
			}
		}
	}
}
