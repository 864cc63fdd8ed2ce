package openstack_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestKindsOfTokens: a token that Nova accepts is accepted here, but for tokens that Keystone does not let validate
// themselves. Those are never called invalid or expired.
func TestKindsOfTokens(t *testing.T) {
	t.Parallel()
	cloud, p, trustee := sandbox(t), testkit.NewProject(t), testkit.NewProject(t)
	id, secret := p.AppCredential(t)
	endingID, endingSecret := p.AppCredentialUntil(t, time.Now().UTC().Add(time.Hour))
	for name, tc := range map[string]struct {
		token   string
		user    string
		project string
		says    string // why it is refused
	}{
		"a password":                 {p.Token(t), p.UserID, p.ID, ""},
		"an application credential":  {p.AppCredentialToken(t, id, secret), p.UserID, p.ID, ""},
		"a credential that ends":     {p.AppCredentialToken(t, endingID, endingSecret), p.UserID, p.ID, ""},
		"a trust":                    {p.TrustToken(t, trustee, false), trustee.UserID, p.ID, ""},
		"a trust with impersonation": {p.TrustToken(t, trustee, true), "", "", "trusts with impersonation"},
		"a domain":                   {testkit.DomainToken(t), "", "", ""},
		"the system":                 {testkit.SystemToken(t), "", "", ""},
		"no scope":                   {p.Unscoped(t), p.UserID, "", ""},
	} {
		who, err := cloud.Validate(t.Context(), domain.Secret(tc.token))
		if tc.says != "" {
			if message := apperr.As(err).Message; apperr.CodeOf(err) != apperr.Forbidden ||
				!strings.Contains(message, tc.says) {
				t.Errorf("%s: %s %q", name, apperr.CodeOf(err), message)
			}
			if _, _, err := cloud.As(domain.Secret(tc.token), "x").Servers(t.Context(),
				domain.ServerQuery{Limit: 1}); err != nil {
				t.Errorf("%s: nova does not accept it either: %v", name, err)
			}
			continue
		}
		if err != nil || who.UserID == "" || tc.user != "" && who.UserID != tc.user || who.ProjectID != tc.project {
			t.Errorf("%s: %+v %v", name, who, err)
		}
	}
}

// cutOff is the real Keystone, with a list_limit of one project.
func cutOff(t *testing.T) *openstack.Cloud {
	t.Helper()
	to, err := url.Parse(sandbox(t).IdentityURL())
	if err != nil {
		t.Fatal(err)
	}
	keystone := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host },
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.URL.Path != "/v3/projects" {
				return nil
			}
			var list map[string]any
			if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
				return err
			}
			all, _ := list["projects"].([]any)
			list["projects"], list["truncated"] = all[:1], true
			body, err := json.Marshal(list)
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			resp.Header.Del("Content-Length")
			return err
		},
	})
	t.Cleanup(keystone.Close)
	cloud, err := openstack.New(openstack.Config{AuthURL: keystone.URL, Interface: "public"}, openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	return cloud
}

// TestAllProjectsOfACutOffList, as the real Keystone knows them.
func TestAllProjectsOfACutOffList(t *testing.T) {
	t.Parallel()
	p, admin := testkit.NewProject(t), domain.Secret(testkit.Token(t, "admin"))
	for _, domainID := range []string{"", p.DomainID} {
		found, err := cutOff(t).As(admin, "admin").Projects(t.Context(), domainID)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{p.Name, "demo", "alt"} { // others come and go
			if !slices.ContainsFunc(found, func(f domain.Project) bool {
				return f.Name == name && f.DomainID == p.DomainID
			}) {
				t.Errorf("domain %q: %s is not among the %d projects", domainID, name, len(found))
			}
		}
		if partner := slices.ContainsFunc(found,
			func(f domain.Project) bool { return f.Name == "partner-dev" }); partner != (domainID == "") {
			t.Errorf("domain %q: the other domain's project is listed: %t", domainID, partner)
		}
	}
}

// sandbox is the real cloud.
func sandbox(t *testing.T) *openstack.Cloud {
	t.Helper()
	cloud, err := openstack.New(openstack.Config{Cloud: "demo", ConfigFile: testkit.CloudsYAML(t)}, openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	return cloud
}

// limited is a session of an application credential that may call what the permissions need, and no more.
func limited(
	t *testing.T, cloud *openstack.Cloud, p *testkit.Project, permissions ...domain.Permission,
) *openstack.Session {
	t.Helper()
	var rules []testkit.AccessRule
	for _, r := range domain.AccessRules(permissions) {
		rules = append(rules, testkit.AccessRule{Path: r.Path, Method: r.Method, Service: r.Service})
	}
	id, secret := p.AppCredential(t, rules...)
	session, err := cloud.Credential(t.Context(), id, domain.Secret(secret))
	if err != nil {
		t.Fatal(err)
	}
	as := session.ActsAs()
	if as.UserID != p.UserID || as.ProjectID != p.ID || !slices.Contains(as.Roles, "member") || as.Unrestricted {
		t.Errorf("it acts as %+v", as)
	}
	return session
}

// call is one call of a session, and the permissions that need it; none = it is needed whatever is permitted.
type call struct {
	name string
	do   func(context.Context, *openstack.Session) error
	by   []domain.Permission
}

// calls are all that is called through a connection. The servers that they name do not exist: Nova says so to anyone
// who may call.
func calls(projectID string) []call {
	const id = "00000000-0000-4000-8000-000000000000"
	allocate, logged := []domain.Permission{domain.MayAllocate}, []domain.Permission{
		domain.MayReboot, domain.MayResize, domain.MayRebuild, domain.MayRescue,
	}
	acting := append(logged, domain.MayAllocate, domain.MayStart, domain.MayStop, domain.MayPause, domain.MaySuspend,
		domain.MayDeploy, domain.MayShelve, domain.MayLock, domain.MaySnapshot)
	return []call{
		{
			"Server", func(ctx context.Context, s *openstack.Session) error {
				_,
					err := s.Server(ctx, id)
				return err
			}, nil,
		},
		{"Servers", func(ctx context.Context, s *openstack.Session) error {
			_, _, err := s.Servers(ctx, domain.ServerQuery{Tags: []string{"x"}, Limit: 10})
			return err
		}, nil},
		{"AllServers", func(ctx context.Context, s *openstack.Session) error {
			_, _, err := s.AllServers(ctx, projectID, "")
			return err
		}, nil},
		{
			"Flavors", func(ctx context.Context, s *openstack.Session) error { _, err := s.Flavors(ctx); return err },
			nil,
		},
		{"Quota", func(ctx context.Context, s *openstack.Session) error { _, err := s.Quota(ctx); return err }, nil},
		{"CreateServer", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.CreateServer(ctx, domain.LaunchSpec{FlavorID: "x", ImageID: id, NetworkIDs: []string{id}}, "x",
				"", nil)
			return err
		}, allocate},
		{
			"Image", func(ctx context.Context, s *openstack.Session) error { _, err := s.Image(ctx, id); return err },
			[]domain.Permission{domain.MayAllocate, domain.MayRebuild, domain.MayRescue},
		},
		{
			"Images", func(ctx context.Context, s *openstack.Session) error {
				_,
					err := s.Images(ctx, "x")
				return err
			}, []domain.Permission{domain.MayAllocate, domain.MaySnapshot, domain.MayRebuild, domain.MayRescue},
		},
		{
			"Networks", func(ctx context.Context, s *openstack.Session) error {
				_,
					err := s.Networks(ctx)
				return err
			}, []domain.Permission{domain.MayAllocate, domain.MayAttach},
		},
		{"ExternalNetworks", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.ExternalNetworks(ctx)
			return err
		}, []domain.Permission{domain.MayAllocate, domain.MayAttach}},
		{"Routes", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.Routes(ctx, []string{id})
			return err
		}, []domain.Permission{domain.MayAttach}},
		{"FloatingIPs", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.FloatingIPs(ctx, domain.FloatingIPQuery{Description: "x"})
			return err
		}, []domain.Permission{domain.MayAttach}},
		{"CreateFloatingIP", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.CreateFloatingIP(ctx, domain.FloatingIPRequest{NetworkID: id})
			return err
		}, []domain.Permission{domain.MayAttach}},
		{"DeleteFloatingIP", func(ctx context.Context, s *openstack.Session) error {
			return s.DeleteFloatingIP(ctx, id)
		}, []domain.Permission{domain.MayAttach}},
		{"NetworkNames", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.NetworkNames(ctx)
			return err
		}, []domain.Permission{domain.MayAllocate, domain.MayAttach}},
		{
			"KeyPairs", func(ctx context.Context, s *openstack.Session) error {
				_,
					err := s.KeyPairs(ctx)
				return err
			}, allocate,
		},
		{"ImportKeyPair", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.ImportKeyPair(ctx, "k"+uuid.NewString(), publicKey())
			return err
		}, allocate},
		{
			"DeleteKeyPair", func(ctx context.Context, s *openstack.Session) error {
				return s.DeleteKeyPair(ctx, "nope")
			}, allocate,
		},
		{
			"StartServer", func(ctx context.Context, s *openstack.Session) error { return s.StartServer(ctx, id) },
			acting,
		},
		{
			"UnshelveServer", func(ctx context.Context, s *openstack.Session) error {
				return s.UnshelveServer(ctx,
					id)
			}, acting,
		},
		{"Actions", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.Actions(ctx, id)
			return err
		}, logged},
		{"RenameServer", func(ctx context.Context, s *openstack.Session) error {
			return s.RenameServer(ctx, id, "x")
		}, []domain.Permission{domain.MayRename}},
		{"ResizeServer", func(ctx context.Context, s *openstack.Session) error {
			return s.ResizeServer(ctx, id, "x")
		}, acting},
		{"LockServer", func(ctx context.Context, s *openstack.Session) error { return s.LockServer(ctx, id) }, acting},
		{"ShelveServer", func(ctx context.Context, s *openstack.Session) error { return s.ShelveServer(ctx, id) }, acting},
		{"SnapshotServer", func(ctx context.Context, s *openstack.Session) error {
			_, err := s.SnapshotServer(ctx, id, "x", uuid.Nil)
			return err
		}, acting},
		{"StopServer", func(ctx context.Context, s *openstack.Session) error { return s.StopServer(ctx, id) }, acting},
		{
			"RebootServer", func(ctx context.Context, s *openstack.Session) error {
				return s.RebootServer(ctx, id, true)
			}, acting,
		},
		{"RebuildServer", func(ctx context.Context, s *openstack.Session) error {
			rebuild := domain.RebuildRequest{ImageID: id, UserData: "x", Metadata: map[string]string{}}
			return s.RebuildServer(ctx, id, rebuild, false)
		}, acting},
		{
			"DeleteServer", func(ctx context.Context, s *openstack.Session) error { return s.DeleteServer(ctx, id) },
			[]domain.Permission{domain.MayDeallocate},
		},
		{
			"Ports", func(ctx context.Context, s *openstack.Session) error { _, err := s.Ports(ctx, id); return err },
			[]domain.Permission{domain.MayAttach, domain.MayDeallocate},
		},
	}
}

// publicKey is one that Nova takes for an SSH key.
func publicKey() string {
	public, _, _ := ed25519.GenerateKey(nil)
	var blob []byte
	for _, part := range [][]byte{[]byte("ssh-ed25519"), public} {
		blob = append(binary.BigEndian.AppendUint32(blob, uint32(len(part))), part...)
	}
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString(blob)
}

// TestLongAccessRulesAreExact: with the rules of a permission everything that it needs is let through, and nothing
// else. The services answer a call that is not in the rules with 401.
func TestLongAccessRulesAreExact(t *testing.T) {
	t.Parallel()
	cloud, p := sandbox(t), testkit.NewProject(t)
	for _, name := range domain.Permissions() {
		permission := domain.Permission(name)
		session := limited(t, cloud, p, permission)
		for _, c := range calls(p.ID) {
			err := c.do(t.Context(), session)
			code := apperr.CodeOf(err)
			needed := len(c.by) == 0 || slices.Contains(c.by, permission)
			if refused := code == apperr.Unauthenticated; refused == needed {
				t.Errorf("with the rules of %s, %s answers %v", permission, c.name, err)
			}
			if needed && err != nil && code != apperr.NotFound && code != apperr.Invalid {
				t.Errorf("with the rules of %s, %s fails: %v", permission, c.name, err)
			}
		}
	}
}

// TestLifeWithinAccessRules takes a server through its life with an application credential that may call nothing but
// what the permissions need, so that what Nova calls meanwhile in the same name works as well. It cannot be deleted
// without deallocate.
func TestLifeWithinAccessRules(t *testing.T) {
	t.Parallel()
	f, cloud, p := testkit.Sandbox(t), sandbox(t), testkit.NewProject(t)
	some := limited(t, cloud, p, domain.MayAllocate, domain.MayStart, domain.MayStop, domain.MayDeploy)
	spec := domain.LaunchSpec{FlavorID: f.FlavorID, ImageID: f.ImageID, NetworkIDs: []string{f.NetworkID}}
	id, err := some.CreateServer(t.Context(), spec, "limited", "#cloud-config\n", []string{uuid.NewString()})
	if err != nil {
		t.Fatal(err)
	}
	p.Await(t, id, "ACTIVE")
	if err := some.StopServer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	p.Await(t, id, "SHUTOFF")
	if err := some.StartServer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	p.Await(t, id, "ACTIVE")
	server, err := some.Server(t.Context(), id)
	if err != nil || len(server.Addresses) == 0 || server.Task != "" {
		t.Fatalf("got %+v %v", server, err)
	}
	mark := uuid.New()
	rebuild := domain.RebuildRequest{ImageID: f.ImageID, UserData: "#cloud-config\n{}\n", Metadata: server.Marked(mark)}
	if err := some.RebuildServer(t.Context(), id, rebuild, false); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 4*time.Minute, "it is rebuilt", func() bool {
		server, err := some.Server(t.Context(), id)
		return err == nil && domain.DeployNext(mark, server) == domain.DeployDone
	})
	if got := testkit.UserData(t, id); got != rebuild.UserData.Reveal() {
		t.Errorf("its user_data is %q", got)
	}
	if err := some.DeleteServer(t.Context(), id); apperr.CodeOf(err) != apperr.Unauthenticated {
		t.Errorf("without deallocate, delete answers %v", err)
	}
	p.Await(t, id, "ACTIVE")
	other := limited(t, cloud, p, domain.MayDeallocate)
	if n, err := other.Ports(t.Context(), id); n != 1 || err != nil {
		t.Errorf("it has %d ports: %v", n, err)
	}
	if err := other.DeleteServer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	p.Await(t, id, "DELETED")
	testkit.Eventually(t, time.Minute, "its port is deleted", func() bool {
		n, err := other.Ports(t.Context(), id)
		return n == 0 && err == nil
	})
}
