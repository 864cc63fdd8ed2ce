package process_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/functions/managed"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fields are the fields of a spec.
type fields map[string]any

// TestManagedKinds declares one resource of each kind over HTTP, changes it, has it replaced where that is declared,
// and deletes it. Its own service is read each time.
func TestManagedKinds(t *testing.T) {
	t.Parallel()
	d := newDeclaring(t)
	for kind, check := range map[string]func(*testing.T, resource){
		"Volume": declareVolume, "Image": declareImage, "Loadbalancer": declareBalancer, "Secret": declareSecret,
		"Configmap": declareConfigmap, "VirtualMachine": declareMachine,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			check(t, d.resource(kind, "one"))
		})
	}
}

// volume is a volume of Cinder.
type volume struct {
	Name, Description string
	Size              int
	Metadata          map[string]string
}

func volumeOf(t *testing.T, cinder testkit.Service, id string) volume {
	t.Helper()
	var found struct{ Volume volume }
	cinder.Get(t, "volumes/"+id, &found)
	return found.Volume
}

func declareVolume(t *testing.T, r resource) {
	cinder := r.Service(t, "cinder")
	id := r.declare(t, fields{"size_gb": 1, "description": "first", "metadata": fields{"a": "b", "c": "d"}})
	v := volumeOf(t, cinder, id)
	if v.Name != "one" || v.Size != 1 || v.Description != "first" || v.Metadata["a"] != "b" {
		t.Fatalf("Cinder has %+v", v)
	}
	r.refused(t, `{"size_gb": 1, "image": "other"}`, "spec.image")
	if same := r.declare(t, fields{"size_gb": 2, "description": "second", "metadata": fields{"a": "x"}}); same != id {
		t.Errorf("it was replaced: %s", same)
	}
	v = volumeOf(t, cinder, id)
	if v.Size != 2 || v.Description != "second" || v.Metadata["a"] != "x" || v.Metadata["c"] != "" {
		t.Errorf("Cinder has %+v", v)
	}
	r.refused(t, `{"size_gb": 1}`, "spec.size_gb")
	r.delete(t)
	absent(t, cinder, "volumes/"+id)
}

// image is an image of Glance.
type image struct {
	Name, Status string
	Distro       string `json:"os_distro"`
	MinDisk      int    `json:"min_disk"`
}

func imageOf(t *testing.T, glance testkit.Service, id string) (found image) {
	t.Helper()
	glance.Get(t, "images/"+id, &found)
	return found
}

func declareImage(t *testing.T, r resource) {
	glance := r.Service(t, "glance")
	spec := func(content, distro string) fields {
		return fields{
			"disk_format": "raw", "content": base64.StdEncoding.EncodeToString([]byte(content)),
			"properties": fields{"os_distro": distro},
		}
	}
	has := func(id, content, distro string) {
		t.Helper()
		i, text := imageOf(t, glance, id), glance.Text(t, "images/"+id+"/file", "*/*")
		if i.Name != "one" || i.Status != "active" || i.Distro != distro || text != content {
			t.Errorf("Glance has %+v with %q", i, text)
		}
	}
	id := r.declare(t, spec("first", "debian"))
	has(id, "first", "debian")
	if same := r.declare(t, spec("first", "ubuntu")); same != id {
		t.Errorf("it was replaced: %s", same)
	}
	has(id, "first", "ubuntu")
	other := r.declare(t, spec("second", "ubuntu"))
	has(other, "second", "ubuntu")
	absent(t, glance, "images/"+id)
	r.delete(t)
	absent(t, glance, "images/"+other)
}

func declareBalancer(t *testing.T, r resource) {
	octavia := r.Service(t, "octavia")
	spec := func(listeners ...fields) fields {
		return fields{"network": testkit.Sandbox(t).Network, "listeners": listeners}
	}
	port := func(n int, addresses ...string) fields {
		return fields{"protocol": "TCP", "port": n, "member_port": 8080, "addresses": addresses}
	}
	id := r.declare(t, spec(port(80, "192.0.2.1"), port(81, "192.0.2.1")))
	before := listenersOf(t, octavia, id)
	if same := r.declare(t, spec(port(80, "192.0.2.1", "192.0.2.2"), port(82, "192.0.2.3"))); same != id {
		t.Errorf("it was replaced: %s", same)
	}
	after := listenersOf(t, octavia, id)
	if len(before) != 2 || len(after) != 2 || after[80] != before[80] || after[82].ID == "" {
		t.Errorf("Octavia has the listeners %+v, and had %+v", after, before)
	}
	var found struct{ Members []struct{ Address string } }
	octavia.Get(t, "lbaas/pools/"+after[80].Pool+"/members", &found)
	if len(found.Members) != 2 {
		t.Errorf("Octavia has the members %+v", found)
	}
	r.delete(t)
	absent(t, octavia, "lbaas/loadbalancers/"+id)
}

// listener is a listener of Octavia.
type listener struct {
	ID   string
	Port int    `json:"protocol_port"`
	Pool string `json:"default_pool_id"`
}

// listenersOf are the listeners of a load balancer, by port.
func listenersOf(t *testing.T, octavia testkit.Service, id string) map[int]listener {
	t.Helper()
	var found struct{ Listeners []listener }
	octavia.Get(t, "lbaas/listeners?load_balancer_id="+id, &found)
	all := map[int]listener{}
	for _, l := range found.Listeners {
		all[l.Port] = l
	}
	return all
}

func declareSecret(t *testing.T, r resource) {
	barbican := r.Service(t, "barbican")
	has := func(id, want string) {
		t.Helper()
		if barbican.Text(t, "secrets/"+id+"/payload", "text/plain") != want {
			t.Error("Barbican has another payload")
		}
	}
	first, second := testkit.Canary("the first payload of a test"), testkit.Canary("the second payload of a test")
	id := r.declare(t, fields{"payload": first})
	has(id, first)
	other := r.declare(t, fields{"payload": second})
	has(other, second)
	absent(t, barbican, "secrets/"+id)
	for _, path := range []string{"", "/revisions", "/revisions/1"} {
		if a := r.Get(t, r.path+path); strings.Contains(string(a.Body), "payload of a test") {
			t.Errorf("%s shows the payload", path)
		}
	}
	r.delete(t)
	absent(t, barbican, "secrets/"+other)
}

func declareConfigmap(t *testing.T, r resource) {
	id := r.declare(t, fields{"data": fields{"a.conf": "first"}})
	if same := r.declare(t, fields{"data": fields{"a.conf": "second", "b.conf": ""}}); same != id {
		t.Errorf("it was replaced: %s", same)
	}
	var spec struct{ Data map[string]string }
	m := r.until(t, "there", func(managed.Managed) bool { return true })
	if err := json.Unmarshal(m.Spec, &spec); err != nil || spec.Data["a.conf"] != "second" || len(spec.Data) != 2 ||
		m.Revision != 2 {
		t.Errorf("it is %+v, %v", m, err)
	}
	r.delete(t)
}

// server is a server of Nova.
type server struct {
	Name, Status string
	Metadata     map[string]string
}

func serverOf(t *testing.T, nova testkit.Service, id string) server {
	t.Helper()
	var found struct{ Server server }
	nova.Get(t, "servers/"+id, &found)
	return found.Server
}

// declareMachine: a server waits for the files that it names, and they stay as long as it does.
func declareMachine(t *testing.T, r resource) {
	s, nova, files := testkit.Sandbox(t), r.Service(t, "nova"), r.resource("Configmap", "boot")
	spec := func(more fields) fields {
		all := fields{
			"flavor": s.Flavor, "image": s.Image, "networks": []string{s.Network}, "configmaps": []string{"boot"},
		}
		maps.Copy(all, more)
		return all
	}
	r.put(t, spec(nil))
	r.until(t, "waiting", func(m managed.Managed) bool { return strings.Contains(m.StatusReason, "no Configmap boot") })
	files.declare(t, fields{"data": fields{"app.conf": "port = 80"}})
	id := r.declare(t, spec(fields{"metadata": fields{"a": "b"}, "tags": []string{"one", "two"}}))
	r.Tag(t, id, "theirs")
	made := serverOf(t, nova, id)
	if made.Name != "one" || made.Status != "ACTIVE" || made.Metadata["a"] != "b" ||
		!strings.Contains(testkit.UserData(t, id), "/etc/cloudfn/boot/app.conf") {
		t.Fatalf("Nova has %+v", made)
	}
	before := r.Tags(t, id)
	again := fields{"metadata": fields{"a": "x"}, "tags": []string{"two", "three"}}
	if same := r.declare(t, spec(again)); same != id {
		t.Errorf("it was replaced: %s", same)
	}
	if now := serverOf(t, nova, id); now.Metadata["a"] != "x" {
		t.Errorf("Nova has %+v", now)
	}
	want := append(slices.DeleteFunc(before, func(tag string) bool { return tag == "one" }), "three")
	if tags := r.Tags(t, id); !isSameSet(tags, want) || !slices.Contains(tags, "theirs") {
		t.Errorf("the tags are %q, want %q", tags, want)
	}
	other := r.declare(t, spec(fields{"flavor": "m1.small", "update": "replace"}))
	absent(t, nova, "servers/"+id)
	if now := serverOf(t, nova, other); now.Status != "ACTIVE" || now.Name != "one" {
		t.Errorf("Nova has %+v", now)
	}
	if a := files.Do(t, http.MethodDelete, files.path, ""); a.Status != http.StatusAccepted {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	files.until(t, "waiting", func(m managed.Managed) bool {
		return m.Status == "deleting" && m.StatusReason == "it is used by VirtualMachine one"
	})
	r.delete(t)
	absent(t, nova, "servers/"+other)
	files.gone(t)
}

// TestLongPods: each pod has a server of its own, whose user_data start its containers. Another image replaces the
// servers one by one, and the endpoints are those of the new ones.
func TestLongPods(t *testing.T) {
	t.Parallel()
	l, s := newLessee(t, nil), testkit.Sandbox(t) // every function: poll-instances reads the addresses
	d := &declaring{Client: l.client(), Project: l.Project, conn: l.conn}
	r, nova := d.resource("PodDeployment", "web"), l.Service(t, "nova")
	spec := func(image string) fields {
		return fields{
			"flavor": s.Flavor, "image": s.Image, "networks": []string{s.Network}, "count": 2,
			"containers": []fields{{"name": "web", "image": image, "ports": []fields{{"port": 8080}}}},
		}
	}
	ready := func(declared managed.Managed) (servers []string) {
		t.Helper()
		m := r.until(t, "ready", func(m managed.Managed) bool {
			l.wake("poll-instances")
			return m.Status == "ready" && m.ObservedRevision == declared.Revision && len(m.Members) == 2 &&
				len(m.Endpoints) >= 2
		})
		for _, e := range m.Endpoints { // the network may have two families
			if e.Port != 8080 || e.Container != "web" || e.Address == "" || !strings.HasPrefix(e.Server, "web-") {
				t.Errorf("got %+v", m.Endpoints)
			}
		}
		return []string{m.Members[0].ObjectID, m.Members[1].ObjectID}
	}
	first := ready(r.put(t, spec("registry.example.com/web:1")))
	second := ready(r.put(t, spec("registry.example.com/web:2")))
	for n, id := range second {
		absent(t, nova, "servers/"+first[n])
		if now := serverOf(t, nova, id); now.Status != "ACTIVE" || now.Name != fmt.Sprintf("web-%d", n) {
			t.Errorf("Nova has %+v", now)
		}
		if config := testkit.UserData(t, id); !strings.Contains(config, "podman-kube@-etc-cloudfn-pod.yaml.service") {
			t.Errorf("its user_data are %s", config)
		}
	}
	r.delete(t)
	absent(t, nova, "servers/"+second[0])
}

// isSameSet reports whether two lists have the same elements, each once.
func isSameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// TestManagedKindsRefused: kinds that OpenStack has no home for, and kinds whose service the catalog lacks, each with a
// code of its own.
func TestManagedKindsRefused(t *testing.T) {
	t.Parallel()
	lacked := map[string]string{
		"Volume": `{"size_gb": 1}`, "Image": `{"disk_format": "raw", "content": "YQ=="}`, "Secret": `{"payload": "a"}`,
		"Loadbalancer": `{"network": "private", "listeners": [
			{"protocol": "TCP", "port": 80, "member_port": 80, "addresses": ["192.0.2.1"]}]}`,
		"VirtualMachine": `{"flavor": "m1.tiny", "image": "cirros", "networks": ["private"]}`,
	}
	env := testkit.Without(t, "compute", "volumev3", "image", "load-balancer", "key-manager").Env(t, "demo")
	env["FUNCTION_TARGET"] = "managed"
	project := testkit.NewProject(t)
	client := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), env)).As(project.Token(t))
	put := func(kind, spec string) testkit.Answer {
		return client.Do(t, http.MethodPut, "/v1/managed/"+kind+"/a?dry_run=true", fmt.Sprintf(`{"spec": %s}`, spec),
			"Content-Type", "application/json")
	}
	for _, kind := range []string{"CI", "CD"} {
		refused(t, kind, put(kind, "{}"), http.StatusUnprocessableEntity, `"unsupported_kind"`)
	}
	for kind, spec := range lacked {
		refused(t, kind, put(kind, spec), http.StatusUnprocessableEntity, `"unsupported_here"`)
	}
	if a := put("Configmap", `{"data": {"a": "b"}}`); a.Status != http.StatusOK {
		t.Errorf("a kind without a service: got %d %s", a.Status, a.Body)
	}
	var list managed.ProviderList
	client.Get(t, "/v1/managed/providers").JSON(t, &list)
	for _, p := range list.Items {
		if p.Available != (p.Name == "postgres") || p.Available == (p.Reason != "") {
			t.Errorf("%+v", p)
		}
	}
}

// TestLongSameInOtherWords: a server stays when its declaration names the same otherwise, and when its flavor is
// deleted: then it changes in place, and is not replaced. Another text in its configmap replaces it as soon as that is
// possible.
func TestLongSameInOtherWords(t *testing.T) {
	t.Parallel()
	d, s := newDeclaring(t), testkit.Sandbox(t)
	d.hurry(t)
	r, files := d.resource("VirtualMachine", "one"), d.resource("Configmap", "boot")
	nova, flavor := d.Service(t, "nova"), d.PrivateFlavor(t)
	file := func(text string) fields { return fields{"data": fields{"motd": text}} }
	files.declare(t, file("first"))
	spec := func(more fields) fields {
		all := fields{
			"flavor": flavor, "image": s.Image, "networks": []string{s.Network}, "configmaps": []string{"boot"},
			"update": "replace",
		}
		maps.Copy(all, more)
		return all
	}
	id := r.declare(t, spec(nil))
	for _, same := range []fields{
		{"image": s.ImageID, "networks": []string{s.NetworkID}}, {"security_groups": []string{"default"}},
	} {
		if now := r.declare(t, spec(same)); now != id {
			t.Errorf("it was replaced for %v", same)
		}
	}
	if err := admin(t).DeleteFlavor(t.Context(), flavor); err != nil {
		t.Fatal(err)
	}
	if now := r.declare(t, spec(fields{"metadata": fields{"a": "b"}})); now != id {
		t.Error("it was replaced for its deleted flavor")
	}
	if now := serverOf(t, nova, id); now.Metadata["a"] != "b" {
		t.Errorf("Nova has %+v", now)
	}

	files.declare(t, file("second"))
	r.until(t, "waiting", func(m managed.Managed) bool { return strings.Contains(m.StatusReason, "no flavor") })
	if now := serverOf(t, nova, id); now.Status != "ACTIVE" {
		t.Errorf("without its flavor it is %+v", now)
	}
	has := func(text string) func(managed.Managed) bool {
		return func(m managed.Managed) bool {
			return m.Status == "ready" && len(m.Members) == 1 && m.Members[0].Status == "ready" &&
				m.Members[0].ObjectID != id && strings.Contains(testkit.UserData(t, m.Members[0].ObjectID),
				base64.StdEncoding.EncodeToString([]byte(text)))
		}
	}
	r.put(t, spec(fields{"flavor": s.Flavor}))
	r.until(t, "replaced by one with the second text", has("second"))
	files.declare(t, file("third"))
	r.until(t, "replaced by one with the third text", has("third"))
}
