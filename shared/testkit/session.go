package testkit

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/openstack"
)

// Session is a login of a service account of the sandbox, by its name in clouds.yaml, as the functions make it.
func Session(t testing.TB, account string) *openstack.Session {
	t.Helper()
	cfg := openstack.Config{Cloud: account, ConfigFile: CloudsYAML(t)}
	cloud, err := openstack.New(cfg, openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	login, err := cloud.Account(cfg, openstack.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	session, err := login.Login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return session
}
