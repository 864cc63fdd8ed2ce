package openstack

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestAnotherCloudHasItsOwnDefaults: OS_INTERFACE and the endpoint overrides are this cloud's; CONNECTION_CLOUDS may
// say others.
func TestAnotherCloudHasItsOwnDefaults(t *testing.T) {
	t.Parallel()
	theirs := "https://theirs.example.com/v3"
	for name, tc := range map[string]struct {
		clouds         []string
		authURL, wants string
		iface, region  string
	}{
		"not listed":          {nil, theirs, "", "public", ""},
		"listed plainly":      {[]string{theirs}, theirs, "", "public", ""},
		"the caller's region": {[]string{theirs}, theirs, "r7", "public", "r7"},
		"with settings": {
			[]string{"https://other.example.com", theirs + ";interface=internal;region=r9"},
			theirs, "", "internal",
			"r9",
		},
		"written differently": {[]string{"https://theirs.example.com/;interface=admin"}, theirs, "", "admin", ""},
		"with both regions":   {[]string{theirs + ";region=r9"}, theirs, "r7", "public", "r7"},
		"this cloud's region": {nil, "", "r2", "internal", "r2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, err := New(Config{AuthURL: "https://ours.example.com", Interface: "internal", Region: "r1"},
				Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := home.AddRemotes(RemotesConfig{Clouds: tc.clouds}); err != nil {
				t.Fatal(err)
			}
			got := home.At(tc.authURL, tc.wants)
			if got.iface != tc.iface || got.region != tc.region {
				t.Errorf("interface %q, region %q", got.iface, got.region)
			}
		})
	}
}

// TestAnotherCloudsCertificate is accepted when the system's roots, OS_CACERT or the cloud's own file has its
// authority.
func TestAnotherCloudsCertificate(t *testing.T) {
	t.Parallel()
	theirs := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(keystoneDocument))
	}))
	t.Cleanup(theirs.Close)
	dir := t.TempDir()
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.pem", theirsPEM(theirs))
	other := file("other.pem", otherAuthority(t))
	yaml := file("clouds.yaml",
		[]byte("clouds: {ours: {auth: {auth_url: 'https://ours.example.com'}, cacert: "+good+"}}"))
	ours := Config{AuthURL: "https://ours.example.com", Interface: "public"}
	for name, tc := range map[string]struct {
		ours     Config
		settings string
		accepted bool
	}{
		"no one's":              {ours, "", false},
		"its own file":          {ours, ";cacert=" + good, true},
		"OS_CACERT":             {Config{AuthURL: ours.AuthURL, Interface: "public", CACert: good}, "", true},
		"cacert of clouds.yaml": {Config{Cloud: "ours", ConfigFile: yaml}, "", true},
		"OS_CACERT is not this one's": {
			Config{AuthURL: ours.AuthURL, Interface: "public", CACert: other}, ";cacert=" + good, true,
		},
		"its own file goes before all": {
			Config{AuthURL: ours.AuthURL, Interface: "public", CACert: good}, ";cacert=" + other, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, err := New(tc.ours, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := home.AddRemotes(RemotesConfig{Clouds: []string{theirs.URL + tc.settings}}); err != nil {
				t.Fatal(err)
			}
			if err := home.At(theirs.URL, "").Reachable(t.Context()); (err == nil) != tc.accepted {
				t.Errorf("got %v", err)
			}
		})
	}
	system, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	both, err := withSystem(theirsPEM(theirs))
	if err != nil || both.Equal(system) {
		t.Fatalf("the file is not added: %v", err)
	}
	if system.AppendCertsFromPEM(theirsPEM(theirs)); !both.Equal(system) {
		t.Error("the system's authorities are not among those of another cloud")
	}
}

func theirsPEM(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// otherAuthority is the certificate of an authority that has signed nothing here.
func otherAuthority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	text, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: text})
}

// TestRemotesConfig names the entry that is wrong, without quoting it.
func TestRemotesConfig(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://a.example/v3":                          "",
		"http://a.example;interface=internal;region=R1": "",
		"keystone":                                              "entry 1 is not a Keystone URL without credentials",
		"https://u:canary@a.example/v3":                         "entry 1 is not a Keystone URL without credentials",
		"https://a.example,ftp://b.example":                     "entry 2 is not a Keystone URL",
		"https://a.example;interface=publicURL":                 `entry 1: interface is "publicURL"; it must be public, internal or admin`,
		"https://a.example;iface=public":                        `entry 1: unknown setting "iface"; expected interface, cacert or region`,
		"https://a.example;interface":                           `entry 1: unknown setting "interface"; expected interface, cacert or region`,
		"https://a.example;region=":                             "entry 1: region is empty",
		"https://a.example;region=a;region=b":                   "entry 1: region is set twice",
		"https://a.example;cacert=/no/such/file":                "entry 1: cacert: open /no/such/file",
		"https://a.example/v3,https://a.example/;region=Second": "entry 2 is the cloud of entry 1",
	} {
		err := RemotesConfig{Clouds: strings.Split(text, ",")}.Validate()
		if (err == nil) != (want == "") || err != nil && (!strings.HasPrefix(err.Error(),
			"CONNECTION_CLOUDS must be") || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "canary")) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// TestAnotherCloud is called at its own Keystone, and chooses from its own catalog.
func TestAnotherCloud(t *testing.T) {
	t.Parallel()
	ours, theirs := newStub(t), loginStub(t, member)
	cloud := ours.cloud(t, func(c *Config) { c.Region = "home" })
	if cloud.Region() != "home" || cloud.At("", "").Region() != "home" || cloud.At("", "r1").Region() != "r1" ||
		cloud.At(theirs.url, "").Region() != "" {
		t.Error("it is in another region than it should be")
	}
	if got := cloud.At("", "r1").IdentityURL(); got != ours.url+"/v3" {
		t.Errorf("another region's Keystone is %s", got)
	}
	for _, url := range []string{theirs.url, theirs.url + "/v3", theirs.url + "/v3/"} {
		session, err := cloud.At(url, "r1").Credential(t.Context(), "c1", "s")
		if err != nil {
			t.Fatal(err)
		}
		if at, err := session.endpoint(t.Context(), "compute"); at != theirs.url+"/compute/" {
			t.Errorf("%s: Nova is at %s: %v", url, at, err)
		}
	}
	if _, err := cloud.At(theirs.url, "r2").Credential(t.Context(), "c1", "s"); err != nil {
		t.Fatal(err)
	}
	session, _ := cloud.At(theirs.url, "r2").Credential(t.Context(), "c1", "s")
	if _, err := session.Flavors(t.Context()); apperr.CodeOf(err) != apperr.Unsupported {
		t.Errorf("an unknown region: %v", err)
	}
	if len(ours.calls) != 0 {
		t.Errorf("our own cloud was called for %s", ours.calls[0].URL)
	}
}

// TestLoginsLeakNothing: a thousand logins in another cloud, and as many regions of it, leave no goroutine behind. It
// is not parallel, because it counts those of the whole process. The other cloud is a fake: a thousand logins would
// take the sandbox minutes.
func TestLoginsLeakNothing(t *testing.T) { //nolint:paralleltest // see above
	theirs := loginStub(t, member)
	cloud := newStub(t).cloud(t, nil)
	login := func(region string) {
		if _, err := cloud.At(theirs.url, region).Credential(t.Context(), "c1", "s"); err != nil {
			t.Fatal(err)
		}
	}
	login("r1")
	before := runtime.NumGoroutine()
	for n := range 1000 {
		login("r1")
		cloud.At(theirs.url, fmt.Sprint("region", n))
	}
	var after int
	for range 600 { // connections that are being closed end soon
		if after = runtime.NumGoroutine(); after <= before+5 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if after > before+5 {
		t.Errorf("there were %d goroutines, and are %d", before, after)
	}
	if cloud.At(theirs.url, "r1") != cloud.At(theirs.url+"/v3", "r1") ||
		cloud.At(theirs.url, "r1") == cloud.At("", "r1") {
		t.Error("one cloud and region is not one Cloud")
	}
	if cloud.others.Len() > maxClouds {
		t.Errorf("%d clouds are kept", cloud.others.Len())
	}
}

// TestCatalogsAreBelievedForAWhile only.
func TestCatalogsAreBelievedForAWhile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	cache := newCatalogCache()
	cache.now = func() time.Time { return now }
	cache.Add("p1", catalog{})
	now = now.Add(catalogTTL)
	if _, ok := cache.Get("p1"); !ok {
		t.Error("it was forgotten too soon")
	}
	now = now.Add(time.Second)
	if _, ok := cache.Get("p1"); ok {
		t.Error("it is believed for too long")
	}
}
