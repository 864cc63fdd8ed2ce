package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestListServers lists servers that another client has made, page by page and by filter.
func TestListServers(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	made := p.BootWithAddress(t, "a.b ✓", 3) // Nova names them "a.b ✓-1" and so on
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))

	var all []domain.Server
	path := "/v1/servers?limit=2"
	for pages := 1; ; pages++ {
		var page ServerPage
		app.Get(t, path).JSON(t, &page)
		all = append(all, page.Servers...)
		if page.Next == nil {
			if pages != 2 {
				t.Errorf("3 servers by 2 came in %d pages", pages)
			}
			break
		}
		path = *page.Next
	}
	for _, want := range made {
		i := slices.IndexFunc(all, func(s domain.Server) bool { return s.ID == want.ID })
		if i < 0 || all[i].Name != want.Name || all[i].Status != want.Status {
			t.Errorf("%s is missing or wrong: %+v", want.ID, all)
			continue
		}
		versions := map[int]string{}
		for _, a := range all[i].Addresses {
			versions[a.Version] = a.Type
		}
		if versions[4] != "fixed" || versions[6] != "fixed" {
			t.Errorf("the addresses are %+v, want a fixed IPv4 and a fixed IPv6", all[i].Addresses)
		}
	}
	if len(all) != 3 {
		t.Errorf("got %d servers, want 3", len(all))
	}

	// Two of them are tracked: one has its instance's tag, as what is launched has; the other's was removed.
	conn := testkit.Connect(t, database)
	id := track(t, conn, p, made[0].ID, domain.InstanceBuilding)
	track(t, conn, p, made[1].ID, domain.InstanceActive)
	p.Tag(t, made[0].ID, id)
	if err := p.Session(t).RenameServer(t.Context(), made[2].ID, made[2].Name+" x|y [z"); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{
		"?name=x|y": 1, "?name=x|-1": 0, "?name=%5By": 0, "?name=%5Bz": 1, "?name=%F0%9F%9A%80": 0, "?name=%5C": 0,
		"": 3, "?status=ACTIVE": 3, "?status=SHUTOFF": 0, "?name=a.b": 3, "?name=aXb": 0, "?name=%E2%9C%93-2": 1,
		"?tracked=true": 2, "?tracked=true&limit=1": 1, "?tracked=true&status=SHUTOFF": 0, "?tracked=true&name=A.B": 2,
		"?tracked=false": 1, "?tracked=false&limit=1": 1,
	} {
		var got ServerPage
		if a := app.Get(t, "/v1/servers"+query); a.Status != 200 {
			t.Errorf("%s: got %d %s", query, a.Status, a.Body)
		} else if a.JSON(t, &got); len(got.Servers) != want {
			t.Errorf("%s: got %d servers, want %d", query, len(got.Servers), want)
		}
	}
	var one domain.Server
	app.Get(t, "/v1/servers/"+made[0].ID).JSON(t, &one)
	if one.Instance == nil || one.Instance.ID.String() != id || one.Instance.State != domain.InstanceActive {
		t.Errorf("the tracked server's instance is %+v, want %s, active as Nova says", one.Instance, id)
	}

	// Nova's own list shows no fault that is in another database than its API's.
	const fault = "Failed to allocate the network(s)"
	testkit.Fault(t, made[2].ID, fault)
	for _, query := range []string{"?status=ERROR", "?tracked=false"} {
		var got ServerPage
		app.Get(t, "/v1/servers"+query).JSON(t, &got)
		if len(got.Servers) != 1 || got.Servers[0].Fault == nil || got.Servers[0].Fault.Message != fault {
			t.Errorf("%s: a server in ERROR is %+v", query, got.Servers)
		}
	}
	var theirs struct {
		Servers []struct{ Fault map[string]any }
	}
	nova := testkit.Compute(t, p.Login(t))
	if _, err := nova.Get(t.Context(), nova.ServiceURL("servers", "detail")+"?status=ERROR", &theirs, nil); err != nil {
		t.Fatal(err)
	}
	if len(theirs.Servers) != 1 || theirs.Servers[0].Fault != nil {
		t.Errorf("nova lists %+v", theirs.Servers)
	}
}

// TestListFilters: Nova filters and sorts, and what it takes for a pattern is a text. A filter that it would ignore is
// rejected.
func TestListFilters(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	f := testkit.Sandbox(t)
	first, second := p.BootWithAddress(t, "filtered-1", 1)[0], p.BootWithAddress(t, "filtered-2", 1)[0]
	p.Drop(t, second.ID)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	testkit.Eventually(t, time.Minute, "Nova lists the deleted server no more", func() bool {
		var got ServerPage
		app.Get(t, "/v1/servers").JSON(t, &got)
		return len(got.Servers) == 1
	})
	var one domain.Server
	app.Get(t, "/v1/servers/"+first.ID).JSON(t, &one)
	n := slices.IndexFunc(one.Addresses, func(a domain.Address) bool { return a.Version == 4 })
	ip := one.Addresses[n].IP
	since := url.QueryEscape(one.CreatedAt.Add(-time.Minute).Format(time.RFC3339))
	for query, want := range map[string]string{
		"flavor=" + f.Flavor: "filtered-1", "flavor=" + f.FlavorID + "&image=" + f.Image: "filtered-1",
		"image=" + f.ImageID: "filtered-1",
		"ip=" + ip:           "filtered-1", "ip=" + strings.Replace(ip, ".", ":", 1): "", "ip=203.0.113.": "",
		"key_name=none":               "",
		"key_name=none&tracked=false": "", "flavor=" + f.Flavor + "&tracked=true": "",
		"name=filtered-&sort=name&changes_since=" + since:  "filtered-1 filtered-2",
		"name=filtered-&sort=-name&changes_since=" + since: "filtered-2 filtered-1",
		"changes_since=2099-01-01T00:00:00Z":               "",
	} {
		var got ServerPage
		a := app.Get(t, "/v1/servers?"+query)
		a.JSON(t, &got)
		var names []string
		for _, s := range got.Servers {
			names = append(names, s.Name)
		}
		if a.Status != 200 || strings.Join(names, " ") != want {
			t.Errorf("%s: got %d %s, want %q", query, a.Status, a.Body, want)
		}
	}
	for query, want := range map[string]int{
		"flavor=none": 400, "image=none": 400, "sort=size": 400, "ip=x": 400, "changes_since=today": 400,
		"host=compute-1":         403,
		"sort=name&tracked=true": 400, "connection_id=" + uuid.NewString() + "&sort=name": 400,
	} {
		if a := app.Get(t, "/v1/servers?"+query); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", query, a.Status, a.Body, want)
		}
	}
}

// TestServerShowsAll: one server comes with its metadata, tags and groups, and the names of its image and
// groups. A list omits them.
func TestServerShowsAll(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	session, facts := p.Session(t), testkit.Sandbox(t)
	group, err := session.EnsureServerGroup(t.Context(), "apart", "soft-anti-affinity")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.DeleteServerGroups(context.Background(), "apart") })
	spec := domain.LaunchSpec{
		FlavorID: facts.FlavorID, ImageID: facts.ImageID, NetworkIDs: []string{facts.NetworkID}, ServerGroup: group,
		Metadata: map[string]string{"role": "db"},
	}
	id, err := session.CreateServer(t.Context(), spec, "shown", "", []string{"blue"})
	if err != nil {
		t.Fatal(err)
	}
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	testkit.Eventually(t, time.Minute, "the server has security groups", func() bool {
		var got domain.Server
		app.Get(t, "/v1/servers/"+id).JSON(t, &got)
		return slices.Equal(got.SecurityGroups, []string{"default"}) && got.Image != nil && got.Image.Name == facts.Image &&
			got.Metadata["role"] == "db" && slices.Equal(got.Tags, []string{"blue"}) &&
			slices.Equal(got.ServerGroups, []domain.ServerGroup{{ID: group, Name: "apart"}})
	})
	var page ServerPage
	app.Get(t, "/v1/servers").JSON(t, &page)
	if len(page.Servers) != 1 || page.Servers[0].Tags != nil || page.Servers[0].Image.Name != "" {
		t.Errorf("listed as %+v", page.Servers)
	}
}

// namedVolumes is a Cinder that has one volume, and counts the calls.
type namedVolumes struct {
	session // the other methods are not called

	calls int
}

func (c *namedVolumes) Volume(_ context.Context, id string) (domain.Volume, error) {
	if c.calls++; id != "v1" {
		return domain.Volume{}, apperr.New(apperr.Unavailable, "cinder does not answer")
	}
	return domain.Volume{ID: id, Name: "data"}, nil
}

// TestVolumeNames: a server shows the names of its volumes. When Cinder fails, it is not called for the others.
func TestVolumeNames(t *testing.T) {
	t.Parallel()
	cinder := &namedVolumes{}
	server := domain.Server{Volumes: []domain.VolumeRef{{ID: "v1"}, {ID: "v2"}, {ID: "v3"}}}
	fillNames(t.Context(), cinder, &server)
	if !slices.Equal(server.Volumes, []domain.VolumeRef{{ID: "v1", Name: "data"}, {ID: "v2"}, {ID: "v3"}}) ||
		cinder.calls != 2 {
		t.Errorf("after %d calls: %+v", cinder.calls, server.Volumes)
	}
}

// TestLongServerEqualsTheOpenStackClients compares field by field, with a floating IP.
func TestLongServerEqualsTheOpenStackClients(t *testing.T) {
	t.Parallel()
	const cloud = "demo" // its private network has a router to the external one
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, cloud))
	f := testkit.Sandbox(t)
	private, external := networksOf(t, cloud)
	name := "floating " + uuid.NewString()
	id := strings.TrimSpace(testkit.OpenStack(t, cloud, "server", "create", "--flavor", f.FlavorID,
		"--image", f.ImageID, "--network", private, "--wait", "-f", "value", "-c", "id", name))
	t.Cleanup(func() { testkit.OpenStack(t, cloud, "server", "delete", "--wait", id) })
	ip := testkit.OpenStack(t, cloud, "floating", "ip", "create", "-f", "value", "-c", "floating_ip_address", external)
	t.Cleanup(func() { testkit.OpenStack(t, cloud, "floating", "ip", "delete", ip) })
	testkit.OpenStack(t, cloud, "server", "add", "floating", "ip", id, ip)

	var ours domain.Server
	testkit.Eventually(t, 30*time.Second, "Nova shows the floating IP", func() bool {
		app.Get(t, "/v1/servers/"+id).JSON(t, &ours)
		return slices.ContainsFunc(ours.Addresses, func(a domain.Address) bool {
			return a.Type == "floating" && a.IP == ip && a.Version == 4
		})
	})
	var theirs struct {
		Name      string              `json:"name"`
		Status    string              `json:"status"`
		Zone      string              `json:"OS-EXT-AZ:availability_zone"`
		Created   time.Time           `json:"created"`
		Updated   time.Time           `json:"updated"`
		Addresses map[string][]string `json:"addresses"`
		Flavor    string              `json:"flavor"`
		Image     string              `json:"image"`
	}
	shown := testkit.OpenStack(t, cloud, "server", "show", "-f", "json", id)
	if err := json.Unmarshal([]byte(shown), &theirs); err != nil {
		t.Fatal(err)
	}
	if ours.Name != name || ours.Name != theirs.Name || ours.Status != theirs.Status || ours.Zone != theirs.Zone ||
		!ours.CreatedAt.Equal(theirs.Created) || !ours.UpdatedAt.Equal(theirs.Updated) {
		t.Errorf("ours %+v, theirs %+v", ours, theirs)
	}
	if !strings.Contains(theirs.Flavor, ours.Flavor.Name) || ours.Image == nil ||
		!strings.Contains(theirs.Image, ours.Image.ID) {
		t.Errorf("flavor and image: ours %+v %+v, theirs %s %s", ours.Flavor, ours.Image, theirs.Flavor, theirs.Image)
	}
	for _, a := range ours.Addresses {
		if !slices.Contains(theirs.Addresses[a.Network], a.IP) {
			t.Errorf("address %+v is not in %v", a, theirs.Addresses)
		}
	}
}

// networksOf finds the project's own network and the external one.
func networksOf(t *testing.T, cloud string) (private, external string) {
	t.Helper()
	private = testkit.OpenStack(t, cloud, "network", "list", "--internal", "--no-share", "-f", "value", "-c", "ID")
	external = testkit.OpenStack(t, cloud, "network", "list", "--external", "-f", "value", "-c", "ID")
	return strings.Fields(private)[0], strings.Fields(external)[0]
}

// TestForbiddenServer is not found, unless it is tracked: for a moment, Nova answers 403 for another project's server
// that has no host yet. A fake does so here, because that moment is short.
func TestForbiddenServer(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := proxyNova(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/servers/") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"forbidden": {"code": 403, "message": "Policy doesn't allow ` +
			`os_compute_api:servers:show to be performed."}}`))
		return true
	}, nil)
	database := testkit.Database(t)
	app, conn := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t)), testkit.Connect(t, database)
	theirs, ours := uuid.NewString(), uuid.NewString()
	track(t, conn, p, ours, domain.InstanceBuilding)
	for id, want := range map[string]int{theirs: 404, ours: 403} {
		if a := app.Get(t, "/v1/servers/"+id); a.Status != want {
			t.Errorf("got %d %s, want %d", a.Status, a.Body, want)
		}
		if a := app.Post(t, "/v1/servers/"+id+"/actions", `{"action":"stop"}`); a.Status != want {
			t.Errorf("stop: got %d %s, want %d", a.Status, a.Body, want)
		}
	}
}

// TestOtherProjectsServerIsNotFound exactly like an id that does not exist.
func TestOtherProjectsServerIsNotFound(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	theirs := p.BootWithAddress(t, "private", 1)[0]
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "alt"))
	absent := uuid.NewString()
	a, b := app.Get(t, "/v1/servers/"+theirs.ID), app.Get(t, "/v1/servers/"+absent)
	const requestID = "X-Request-Id"
	mask := strings.NewReplacer(theirs.ID, "ID", absent, "ID", a.Header.Get(requestID), "R", b.Header.Get(requestID),
		"R")
	if a.Status != 404 || b.Status != 404 || mask.Replace(string(a.Body)) != mask.Replace(string(b.Body)) {
		t.Errorf("another project's: %d %s\nabsent: %d %s", a.Status, a.Body, b.Status, b.Body)
	}
	var list ServerPage
	app.Get(t, "/v1/servers?limit=1000").JSON(t, &list)
	if slices.ContainsFunc(list.Servers, func(s domain.Server) bool { return s.ID == theirs.ID }) {
		t.Error("the list has another project's server")
	}
}

func TestListRejectsBadParameters(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "demo"))
	for path, field := range map[string]string{
		"/v1/servers?limit=1001": "limit", "/v1/servers?status=DELETED": "status",
		"/v1/servers?name=a%00b": "name", "/v1/servers?region=Nowhere": "region",
		"/v1/servers/" + uuid.NewString() + "?region=Nowhere":                                     "region",
		"/v1/servers?region=RegionOne&tracked=true":                                               "region",
		"/v1/servers?region=RegionOne&connection_id=" + uuid.NewString():                          "region",
		"/v1/servers/" + uuid.NewString() + "?region=RegionOne&connection_id=" + uuid.NewString(): "region",
	} {
		if a := app.Get(t, path); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 that names %s", path, a.Status, a.Body, field)
		}
	}
	for path, want := range map[string]int{
		"/v1/servers/x": 404, "/v1/servers/" + strings.Repeat("a", 5000): 404, "/v1/servers/../requests": 404,
		"/v1/servers/": 404, fmt.Sprintf("/v1/servers?marker=%s", uuid.New()): 400, // by Nova
		"/v1/servers?region=RegionOne&limit=1": 200,
	} {
		if a := app.Get(t, path); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
}

// TestConsoleLog shows what Nova's fake driver writes, by the server's id and its instance's. Nova's policy decides
// about readers. An admin gets nothing of other projects, although Nova would show it.
func TestConsoleLog(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "talks", 1)[0].ID
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	instance := track(t, testkit.Connect(t, database), p, server, domain.InstanceActive)
	const all = "FAKE CONSOLE OUTPUT\nANOTHER\nLAST LINE"
	for path, want := range map[string]string{
		server + "/console": all, instance + "/console": all, server + "/console?lines=2": "ANOTHER\nLAST LINE",
		server + "/console?lines=1": "LAST LINE", server + "/console?lines=1000": all,
	} {
		var got ServerConsoleLog
		if a := app.Get(t, "/v1/servers/"+path); a.Status != 200 || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %d %s %v", path, a.Status, a.Body, a.Header)
		} else if a.JSON(t, &got); got.Output != want {
			t.Errorf("%s: got %q, want %q", path, got.Output, want)
		}
	}
	for path, status := range map[string]int{
		server + "/console?lines=0": 400, server + "/console?lines=1001": 400, uuid.NewString() + "/console": 404,
	} {
		if a := app.Get(t, "/v1/servers/"+path); a.Status != status {
			t.Errorf("%s: got %d %s", path, a.Status, a.Body)
		}
	}
	admin := app.As(testkit.Token(t, "admin"))
	if a := admin.Get(t, "/v1/servers/"+server+"/console"); a.Status != 404 {
		t.Errorf("another project's server: got %d %s", a.Status, a.Body)
	}
	if a := openConsole(t, admin, server, "novnc"); a.Status != 404 {
		t.Errorf("another project's server: got %d %s", a.Status, a.Body)
	}
	if status := p.Act(t, server, "shelve"); status != http.StatusAccepted {
		t.Fatalf("shelve: Nova answers %d", status)
	}
	p.Await(t, server, "SHELVED_OFFLOADED")
	testkit.Eventually(t, time.Minute, "a server without a host has no console", func() bool {
		a := app.Get(t, "/v1/servers/"+server+"/console") // Nova clears its host after it has stored the status
		return a.Status == 409 && strings.Contains(string(a.Body), "is not ready")
	})
}

func openConsole(t *testing.T, app *testkit.Client, server, kind string) testkit.Answer {
	t.Helper()
	return app.Do(t, http.MethodPost, "/v1/servers/"+server+"/console", `{"type": "`+kind+`"}`,
		"Content-Type", "application/json", "Idempotency-Key", uuid.NewString())
}

// TestRemoteConsole opens consoles by a Nova that has them; the sandbox's has none. The token in a URL is neither
// logged nor stored.
func TestRemoteConsole(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "screen", 1)[0].ID
	at := "https://console.example.com/?token=" + testkit.Canary("console-"+uuid.NewString())
	var protocol string
	nova := testkit.Instead(t, testkit.Endpoint(t, "compute"), func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/servers/"+server+"/remote-consoles") {
			return false
		}
		text, _ := io.ReadAll(r.Body)
		var request struct {
			Console map[string]string `json:"remote_console"`
		}
		_ = json.Unmarshal(text, &request)
		protocol = request.Console["protocol"] + " " + r.Header.Get("OpenStack-API-Version")
		w.Header().Set("Content-Type", "application/json")
		request.Console["url"] = at
		_ = json.NewEncoder(w).Encode(map[string]any{"remote_console": request.Console})
		return true
	})
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo")
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	for kind, want := range map[string]string{
		"novnc": "vnc compute 2.6", "spice-html5": "spice compute 2.6", "rdp-html5": "rdp compute 2.6",
		"serial": "serial compute 2.6", "webmks": "mks compute 2.8",
	} {
		var got ServerConsole
		if a := openConsole(t, app, server, kind); a.Status != 200 || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %d %s %v", kind, a.Status, a.Body, a.Header)
		} else if a.JSON(t, &got); got.Type != kind || got.URL != at || protocol != want {
			t.Errorf("%s: got %+v by %s", kind, got, protocol)
		}
	}
	for kind, status := range map[string]int{"vnc": 400, "": 400} {
		if a := openConsole(t, app, server, kind); a.Status != status {
			t.Errorf("%q: got %d %s", kind, a.Status, a.Body)
		}
	}
	if a := openConsole(t, app.As(p.ReaderToken(t)), server, "novnc"); a.Status != 403 {
		t.Errorf("a reader: got %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, testkit.Connect(t, database), "select count(*)::int from idempotency_keys"); n != 0 {
		t.Errorf("%d responses are stored", n)
	}
	plain := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	if a := openConsole(t, plain, server, "novnc"); a.Status != 409 ||
		!strings.Contains(string(a.Body), "no such console: nova: Unavailable console type novnc.") {
		t.Errorf("the sandbox: got %d %s", a.Status, a.Body)
	}
}

// TestLastLines takes lines from the end, and no more bytes than permitted.
func TestLastLines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{
		{"", 1, ""},
		{"\n", 1, "\n"},
		{"a", 1, "a"},
		{"a\n", 1, "a\n"},
		{"a\nb", 1, "b"},
		{"a\nb\n", 1, "b\n"},
		{"a\nb\n", 2, "a\nb\n"},
		{"a\n\nb", 2, "\nb"},
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"x\n" + strings.Repeat("é", maxConsoleLog/2) + "\n", 9, strings.Repeat("é", maxConsoleLog/2-1) + "\n"},
		{strings.Repeat("a", maxConsoleLog) + "\nb\n", 9, "b\n"},
	} {
		if got := lastLines(tc.text, tc.n); got != tc.want {
			t.Errorf("%.20q, %d: got %.20q of %d bytes", tc.text, tc.n, got, len(got))
		}
	}
}
