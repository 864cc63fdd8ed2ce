package resources

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestResourcesOfAProject(t *testing.T) {
	t.Parallel()
	sandbox := testkit.Sandbox(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	var demo, alt Resources
	app.As(testkit.Token(t, "demo")).Get(t, "/v1/resources").JSON(t, &demo)
	app.As(testkit.Token(t, "alt")).Get(t, "/v1/resources?kinds=flavors,images,networks").JSON(t, &alt)

	private := func(f domain.Flavor) bool { return !f.Public }
	if !slices.ContainsFunc(demo.Flavors, private) || slices.ContainsFunc(alt.Flavors, private) {
		t.Errorf("the private flavor is demo's alone: demo has %+v, alt %+v", demo.Flavors, alt.Flavors)
	}
	retired := func(i domain.Image) bool { return i.ID == sandbox.RetiredID && i.Status == "deactivated" }
	if !slices.ContainsFunc(demo.Images, retired) {
		t.Errorf("the deactivated image is not marked: %+v", demo.Images)
	}
	if slices.ContainsFunc(demo.Images, func(i domain.Image) bool { return i.ID == sandbox.CommunityID }) {
		t.Error("a community image is listed for a project that did not request it")
	}
	// Neutron hides router:external of the admin's network from demo.
	if n := slices.IndexFunc(demo.Networks, func(n domain.Network) bool { return n.External }); n < 0 {
		t.Errorf("no network is external: %+v", demo.Networks)
	} else if slices.ContainsFunc(demo.Networks[n:], func(n domain.Network) bool { return !n.External }) {
		t.Errorf("an external network, on which demo cannot launch, is listed before one on which it can: %+v",
			demo.Networks)
	}
	shared := slices.IndexFunc(demo.Networks, func(n domain.Network) bool { return n.ID == sandbox.NetworkID })
	if shared < 0 || !demo.Networks[shared].Shared || len(demo.Networks[shared].Subnets) != 2 ||
		demo.Networks[shared].Subnets[1].IPVersion != 6 {
		t.Errorf("the shared network with IPv4 and IPv6 is wrong: %+v", demo.Networks)
	}
}

// TestResourcesWithANULInAName: what another project calls its network is no fault of those it is shared with.
func TestResourcesWithANULInAName(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	id := p.SharedNetwork(t, "a\x00b")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	var got Resources
	app.Get(t, "/v1/resources?kinds=networks").JSON(t, &got)
	if !slices.ContainsFunc(got.Networks, func(n domain.Network) bool { return n.ID == id && n.Name == "a\uFFFDb" }) {
		t.Errorf("got %+v", got.Networks)
	}
}

func TestResourcesByKind(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "demo"))
	a := app.Get(t, "/v1/resources?kinds=keypairs,security_groups,regions,zones,quota,keypairs")
	var got Resources
	a.JSON(t, &got)
	switch {
	case a.Status != 200 || got.Flavors != nil || got.KeyPairs == nil:
		t.Errorf("got %d %s", a.Status, a.Body)
	case len(got.SecurityGroups) == 0 || len(got.Zones) == 0 || got.Quota == nil || got.Quota.Instances.Max == 0:
		t.Errorf("something is missing: %s", a.Body)
	case len(got.Regions) == 0 || !slices.Contains(got.Regions[0].Services, "compute"):
		t.Errorf("the regions are %+v", got.Regions)
	}
	for path, field := range map[string]string{
		"/v1/resources?kinds=flavors,volumes": "kinds[1]",
		"/v1/resources?kind=flavors":          "kind",
	} {
		if a := app.Get(t, path); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 that names %s", path, a.Status, a.Body, field)
		}
	}
}

// TestResourcesWithoutOneService cuts off Glance: the other kinds still come, and the answer says what failed.
func TestResourcesWithoutOneService(t *testing.T) {
	t.Parallel()
	cloud := testkit.Redirect(t, "image") // a fake catalog entry: the real Glance cannot be stopped for one test alone
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), cloud.Env(t, "collector")),
		Function).As(testkit.Token(t, "demo"))
	a := app.Get(t, "/v1/resources")
	var got Resources
	a.JSON(t, &got)
	if a.Status != 200 || len(got.Flavors) == 0 || got.Images != nil || got.Errors["images"].Code != "unavailable" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, "/v1/resources?kinds=images"); a.Status != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("when all kinds fail: got %d %s, want 503 with Retry-After", a.Status, a.Body)
	}
}

func TestResourcesNeedsAProject(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"no token":       {"", 401},
		"garbage":        {"gAAAAABgarbage", 401},
		"not a token":    {"a b", 401},
		"unscoped token": {p.Unscoped(t), 401},
		"domain scope":   {testkit.DomainToken(t), 403},
	} {
		a := app.As(tc.token).Get(t, "/v1/resources")
		if a.Status != tc.want || tc.want == 401 && a.Header.Get("Www-Authenticate") == "" {
			t.Errorf("%s: got %d %v %s, want %d", name, a.Status, a.Header, a.Body, tc.want)
		}
	}
}

// TestResourcesWithAWrongAuthURL: a wrong path is the operator's mistake, and no word about anybody's token.
func TestResourcesWithAWrongAuthURL(t *testing.T) {
	t.Parallel()
	keystone := testkit.Redirect(t)
	for name, path := range map[string]string{"an unknown path": "/wrong/v3", "another version": "/v2.0"} {
		env := keystone.Env(t, "collector")
		env["OS_AUTH_URL"] = strings.TrimSuffix(keystone.URL(), "/v3") + path
		app := testkit.Start(t, testkit.Env(t, testkit.Database(t), env), Function)
		a := app.As(testkit.Token(t, "demo")).Get(t, "/v1/resources")
		if a.Status != 503 || a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Body), "keystone") ||
			strings.Contains(string(a.Body), "access rules") {
			t.Errorf("%s: got %d %s, want 503 that names keystone", name, a.Status, a.Body)
		}
	}
}

// TestResourcesWithAServiceThatHangs answers the other kinds after a kind's own deadline; after the request's deadline
// the answer would be a 504. The fake Glance takes the request and never answers; everything else is the sandbox.
func TestResourcesWithAServiceThatHangs(t *testing.T) {
	t.Parallel()
	glance := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	t.Cleanup(func() {
		glance.CloseClientConnections()
		glance.Close()
	})
	cloud := testkit.RedirectTo(t, map[string]string{"image": glance.URL})
	env := cloud.Env(t, "collector")
	// not the default: on two busy cores the sandbox's own services may take longer than 5 s
	env["RESOURCE_TIMEOUT"] = "12s"
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), env), Function).As(testkit.Token(t, "demo"))
	a := app.Get(t, "/v1/resources")
	var got Resources
	a.JSON(t, &got)
	if a.Status != 200 || len(got.Flavors) == 0 || len(got.Networks) == 0 || got.Images != nil ||
		got.Errors["images"].Code != "timeout" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if !strings.Contains(got.Errors["images"].Detail, "glance") {
		t.Errorf("the problem does not name the service: %+v", got.Errors["images"])
	}
}

// TestResourcesOfARegion: the caller may name one of the catalog's; there is one in the sandbox.
func TestResourcesOfARegion(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "demo"))
	if a := app.Get(t, "/v1/resources?kinds=flavors&region=RegionOne"); a.Status != 200 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	a := app.Get(t, "/v1/resources?region=Nowhere")
	if a.Status != 400 || !testkit.Names(t, a, "region") || !strings.Contains(string(a.Body), "RegionOne") {
		t.Errorf("got %d %s, want 400 that names region and lists those that there are", a.Status, a.Body)
	}
}

// TestResourcesAtAnotherComputeEndpoint, with a proxy before the sandbox's Nova: the catalog names its root, or its
// legacy v2, where Nova serves all calls and ignores microversions.
func TestResourcesAtAnotherComputeEndpoint(t *testing.T) {
	t.Parallel()
	root, calls := testkit.Intercept(t, strings.TrimSuffix(testkit.Endpoint(t, "compute"), "/v2.1"),
		func(r *http.Request) {
			if r.URL.Path != "/" && !strings.Contains(r.URL.Path, "/v2.1/") {
				t.Errorf("%s was called", r.URL.Path)
			}
		})
	legacy := testkit.RedirectTo(t, map[string]string{"compute": root + "/v2"}).Env(t, "collector")
	inCatalog := testkit.RedirectTo(t, map[string]string{"compute": root}).Env(t, "collector")
	byVariable := testkit.Redirect(t, "compute").Env(t, "collector")
	byVariable["OS_COMPUTE_ENDPOINT_OVERRIDE"] = root
	for name, env := range map[string]map[string]string{
		"in the catalog": inCatalog, "by the variable": byVariable, "legacy": legacy,
	} {
		calls.Store(0)
		app := testkit.Start(t, testkit.Env(t, testkit.Database(t), env), Function).As(testkit.Token(t, "demo"))
		for range 2 {
			a := app.Get(t, "/v1/resources?kinds=flavors")
			var got Resources
			a.JSON(t, &got)
			if a.Status != 200 || len(got.Flavors) == 0 {
				t.Errorf("%s: got %d %s", name, a.Status, a.Body)
			}
		}
		if n := calls.Load(); n != 3 {
			t.Errorf("%s: Nova was called %d times, want its versions once and its flavors twice", name, n)
		}
	}
}

// TestDeleteKeyPair deletes what a launch generated; one that the caller lacks is a 404.
func TestDeleteKeyPair(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	const name, key = "cloudfn-0f8fad5b-d9cb-469f-a165-70867728950e",
		"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2nrJo1qkVTnG2uVwaL2P0N6kWPlLCu1eDJ3bFzPn7p"
	if _, err := p.Session(t).ImportKeyPair(t.Context(), name, key); err != nil {
		t.Fatal(err)
	}
	var got Resources
	app.Get(t, "/v1/resources?kinds=keypairs").JSON(t, &got)
	if len(got.KeyPairs) != 1 || got.KeyPairs[0].Name != name {
		t.Errorf("listed are %+v", got.KeyPairs)
	}
	for _, want := range []int{http.StatusNoContent, http.StatusNotFound} {
		if a := app.Do(t, "DELETE", "/v1/resources/keypairs/"+name, ""); a.Status != want {
			t.Errorf("got %d %s, want %d", a.Status, a.Body, want)
		}
	}
	if keys := p.KeyPairs(t); len(keys) != 0 {
		t.Errorf("left are %v", keys)
	}
}

// TestCreateKeyPair: a generated pair fits together and has its private key once. With a key of the request the same
// answer comes again, and after a replica has died a new pair in the place of the one whose private key is lost.
func TestCreateKeyPair(t *testing.T) {
	t.Parallel()
	p, database := testkit.NewProject(t), testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	const path = "/v1/resources/keypairs"
	send := func(body string, want int, header ...string) (made KeyPairCreated) {
		t.Helper()
		a := app.Do(t, "POST", path, body, append(header, "Content-Type", "application/json")...)
		if a.Status != want {
			t.Fatalf("%s: got %d %s, want %d", body, a.Status, a.Body, want)
		}
		if want == http.StatusCreated {
			a.JSON(t, &made)
		}
		return made
	}
	fits := func(made KeyPairCreated) bool {
		signer, err := ssh.ParsePrivateKey([]byte(made.PrivateKey))
		if err != nil {
			t.Fatal(err)
		}
		public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(made.PublicKey))
		return err == nil && string(public.Marshal()) == string(signer.PublicKey().Marshal()) &&
			p.KeyPairs(t)[made.Name] == made.PublicKey && made.Type == "ssh" && made.Fingerprint != ""
	}
	if made := send(`{"name": "laptop"}`, 201); !fits(made) {
		t.Errorf("got %+v", made)
	}
	send(`{"name": "laptop"}`, 409)
	const public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f joe"
	own := send(`{"name": "own", "public_key": "`+public+`"}`, 201)
	if own.PrivateKey != "" || own.PublicKey != public {
		t.Errorf("imported: got %+v", own)
	}
	send(`{"name": "wrong", "public_key": "no key"}`, 400)
	for name, body := range map[string]string{
		"generated": `{"name": "generated"}`, "given": `{"name": "given", "public_key": "` + public + `"}`,
	} {
		key := []string{"Idempotency-Key", uuid.NewString()}
		first := send(body, 201, key...)
		if again := send(body, 201, key...); again != first {
			t.Errorf("%s: sent again it is %+v, was %+v", name, again, first)
		}
		testkit.LeaveRequests(t, testkit.Connect(t, database), testkit.Died)
		again := send(body, 201, key...)
		isReplaced := again.PrivateKey != first.PrivateKey
		if isReplaced != (name == "generated") || isReplaced && !fits(again) || !isReplaced && again != first {
			t.Errorf("%s: after a replica has died it is %+v", name, again)
		}
	}
	// A key of another request does not replace the pair.
	send(`{"name": "generated"}`, 409, "Idempotency-Key", uuid.NewString())
}

// TestResourcesOfConnection shows what was read through it, within its limits, to all who are authorized to act through
// it.
func TestResourcesOfConnection(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	owner, caller, stranger := testkit.BorrowProject(t), testkit.BorrowProject(t), testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(caller.Token(t))
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	c, err := postgres.Connections{DB: db}.Create(t.Context(), domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: owner.ID, DomainID: owner.DomainID, UserID: owner.UserID,
		Kind: domain.TrustConnection, DelegationID: "t",
		Actions: []domain.Permission{domain.MayAllocate}, UsableBy: []string{caller.UserID}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
		Limits:    domain.ConnectionLimits{Images: []string{"i1"}, Flavors: []string{"tiny"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := "/v1/resources?connection_id=" + c.ID.String()
	if a := app.Get(t, path); a.Status != 503 || a.Header.Get("Retry-After") == "" ||
		!strings.Contains(string(a.Body), "nothing was read") {
		t.Errorf("before anything was read: %d %s", a.Status, a.Body)
	}
	if due := testkit.Scalar[bool](t, testkit.Connect(t, database),
		"select next_check_at <= now() from connections"); !due {
		t.Error("its check is not due")
	}
	image := domain.Image{ID: "i1", Name: "cirros", Status: "active", Visibility: "public"}
	available := domain.AvailableResources{
		Flavors:   []domain.Flavor{{ID: "1", Name: "tiny", VCPUs: 1}, {ID: "2", Name: "small", VCPUs: 1}},
		Images:    []domain.Image{image, {ID: "i2", Name: "debian"}},
		Quota:     &domain.Quota{Instances: domain.QuotaItem{Max: 3}},
		Truncated: []string{domain.ResourceFlavors},
		Problems: map[string]domain.Problem{
			domain.ResourceNetworks: {Code: "unavailable", Detail: "neutron cannot be reached"},
		},
	}
	delegations := postgres.Delegations{DB: db}
	now, err := db.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := delegations.RecordResources(t.Context(), owner.ID, c.ID, now.Add(-2*time.Second), available); err != nil {
		t.Fatal(err)
	}
	var got Resources
	a := app.Get(t, path)
	if a.JSON(t, &got); a.Status != 200 || len(got.Flavors) != 1 || len(got.Images) != 1 || got.Images[0].ID != "i1" ||
		got.Quota != nil ||
		got.Errors["networks"].Status != 503 || got.AsOf == nil || *got.Age < 2 || *got.Age > 60 ||
		fmt.Sprint(got.Truncated) != "[flavors]" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, path+"&kinds=quota"); a.Status != 200 || !strings.Contains(string(a.Body), `"quota"`) ||
		strings.Contains(string(a.Body), "flavors") {
		t.Errorf("the quota alone: %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, path+"&kinds=networks"); a.Status != 503 {
		t.Errorf("only what could not be read: %d %s", a.Status, a.Body)
	}
	for query, field := range map[string]string{
		path + "&region=west": "region", path + "&kinds=zones": "kinds",
		"/v1/resources?connection_id=x": "connection_id",
	} {
		if a := app.Get(t, query); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s", query, a.Status, a.Body)
		}
	}
	for who, want := range map[*testkit.Project]int{owner: 200, stranger: 404} {
		if a := app.As(who.Token(t)).Get(t, path); a.Status != want {
			t.Errorf("got %d %s, want %d", a.Status, a.Body, want)
		}
	}
	testkit.Scalar[int](t, testkit.Connect(t, database),
		"with u as (update connections set actions = '{start}' returning 1) select count(*)::int from u")
	if a := app.Get(t, path); a.Status != 403 {
		t.Errorf("when nothing can be ordered: %d %s", a.Status, a.Body)
	}
}
