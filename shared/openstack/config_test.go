package openstack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	yaml := write("clouds.yaml", `clouds:
  good: {auth: {auth_url: "https://k.example.com:5000", username: u, password: canary}, region_name: r2, interface: internal}
  plain: {auth: {auth_url: "https://k.example.com/identity/v3/"}}
  odd: {auth: {auth_url: "https://k.example.com"}, interface: outside}
  empty: {auth: {username: u, password: canary}}
`)
	noCA := write("ca.pem", "this is no certificate")
	for name, tc := range map[string]struct {
		cfg      Config
		identity string // "" when it is refused
		says     string
	}{
		"a URL": {Config{AuthURL: "http://k:5000", Interface: "public"}, "http://k:5000/v3", ""},
		"a URL with v3": {
			Config{AuthURL: "http://k/identity/v3", Interface: "admin"}, "http://k/identity/v3", "",
		},
		"a URL with a slash":               {Config{AuthURL: "http://k/v3/", Interface: "internal"}, "http://k/v3", ""},
		"no URL":                           {Config{Interface: "public"}, "", "OS_AUTH_URL"},
		"no scheme":                        {Config{AuthURL: "k:5000/v3", Interface: "public"}, "", "OS_AUTH_URL"},
		"another scheme":                   {Config{AuthURL: "ftp://k", Interface: "public"}, "", "OS_AUTH_URL"},
		"another interface":                {Config{AuthURL: "http://k", Interface: "outside"}, "", "OS_INTERFACE"},
		"such an interface in clouds.yaml": {Config{Cloud: "odd", ConfigFile: yaml}, "", "its interface"},
		"no such CA": {
			Config{AuthURL: "http://k", Interface: "public", CACert: filepath.Join(dir, "none")}, "", "OS_CACERT",
		},
		"no CA in it": {Config{AuthURL: "http://k", Interface: "public", CACert: noCA}, "", "OS_CACERT"},
		"clouds.yaml": {Config{Cloud: "good", ConfigFile: yaml}, "https://k.example.com:5000/v3", ""},
		"clouds.yaml, plain": {
			Config{Cloud: "plain", ConfigFile: yaml, Region: "r1"}, "https://k.example.com/identity/v3", "",
		},
		"clouds.yaml, no URL": {Config{Cloud: "empty", ConfigFile: yaml}, "", "auth_url"},
		"no such cloud":       {Config{Cloud: "other", ConfigFile: yaml}, "", "OS_CLOUD"},
		"no clouds.yaml":      {Config{Cloud: "good", ConfigFile: filepath.Join(dir, "none")}, "", "OS_CLOUD"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := New(tc.cfg, Options{})
			if tc.identity == "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "canary") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || c.IdentityURL() != tc.identity {
				t.Fatalf("got %+v %v", c, err)
			}
			want := map[string][2]string{
				"good": {"r2", "internal"}, "plain": {"", "public"}, "": {"", tc.cfg.Interface},
			}[tc.cfg.Cloud]
			if got := [2]string{c.region, c.iface}; got != want {
				t.Errorf("region and interface are %v, want %v", got, want)
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  Credentials
		good bool
	}{
		"a password": {
			Credentials{Username: "u", Password: "p", UserDomain: "Default", Project: "x", ProjectDom: "Default"}, true,
		},
		"by ids": {
			Credentials{UserID: "u", Password: "p", ProjectID: "x", UserDomain: "ignored"}, true,
		},
		"an application credential": {Credentials{AppCredID: "a", AppCred: "s"}, true},
		"nothing":                   {Credentials{}, false},
		"no password":               {Credentials{Username: "u"}, false},
		"no user":                   {Credentials{Password: "p"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			account, err := (&Cloud{}).Account(Config{AuthURL: "http://k"}, tc.cfg)
			if (err == nil) != tc.good {
				t.Fatalf("got %v", err)
			}
			if !tc.good {
				return
			}
			auth := account.auth
			scope, err := auth.ToTokenV3ScopeMap()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := auth.ToTokenV3CreateMap(scope); err != nil {
				t.Errorf("Keystone cannot be asked: %v", err)
			}
		})
	}
}
