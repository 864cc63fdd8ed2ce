package run

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// TestRoutesAreBuiltOnce in a process that serves them: their descriptions take megabytes. They are also built without
// a service when they are to be described.
func TestRoutesAreBuiltOnce(t *testing.T) {
	calls := map[bool]int{} // by whether there is a service
	counted := things
	counted.Routes = func(th *thing) []httpx.Route {
		calls[th != nil]++
		return things.Routes(th)
	}
	all, err := list([]Function{counted})
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProcess(t.Context(), environment(nil), Texts{}, io.Discard, all)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	if calls[true] != 1 || calls[false] != 0 {
		t.Errorf("a process has built its routes %d times, and %d times without a service", calls[true], calls[false])
	}
	if d := Describe(counted); len(d.Routes) != 1 || calls[false] != 1 {
		t.Errorf("described are %q, built %d times", d.Routes, calls[false])
	}
}

// TestSchedules: one function has a PingSource every minute, and every other one something that wakes it.
func TestSchedules(t *testing.T) {
	due := []string{"select now()"}
	at := func(name string, s Schedule, due ...string) Function {
		f := tickThings
		f.Name, f.Schedule, f.Due = name, s, due
		return f
	}
	all, err := list([]Function{at("a", Minutely), at("b", Hourly), at("c", Hourly, due...), at("d", "", due...)})
	if err != nil {
		t.Fatal(err)
	}
	if got := dueOf(all); len(got) != 2 || got[0].Function != "c" || got[1].Function != "d" ||
		!slices.Equal(got[1].SQL, due) {
		t.Errorf("due are %v", got)
	}
	if _, err := list([]Function{at("a", Minutely), at("b", Minutely)}); err == nil {
		t.Error("two functions every minute are taken")
	}
	if _, err := list([]Function{at("a", "")}); err == nil {
		t.Error("a function that no one wakes is taken")
	}
	for _, s := range []Schedule{"8", "8 * * * * *", "0 0 * * *", "8 * * * *"} {
		if _, err := list([]Function{at("a", s, due...)}); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// TestAccount: a function's own account is the cloud that its variable names. The login of the environment is that of a
// function that runs alone, and never that of one in the daemon, which needs fewer rights for most functions.
func TestAccount(t *testing.T) {
	t.Parallel()
	where := openstack.Config{AuthURL: "http://127.0.0.1:1/v3", Interface: "public"}
	cloud, err := openstack.New(where, openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	where.ConfigFile = filepath.Join(t.TempDir(), "clouds.yaml")
	text := "clouds: {hosts: {auth: {username: hosts, password: x}}, empty: {}}"
	if err := os.WriteFile(where.ConfigFile, []byte(text), 0o400); err != nil {
		t.Fatal(err)
	}
	login := openstack.Credentials{Username: "own", Password: "x"}
	for name, tc := range map[string]struct {
		alone bool
		cloud string
		login openstack.Credentials
		want  string // the account, or what the error says
	}{
		"named":                    {false, "hosts", login, "the user hosts of"},
		"named, alone":             {true, "hosts", login, "the user hosts of"},
		"alone":                    {true, "", login, "the user own of"},
		"alone, without a login":   {true, "", openstack.Credentials{}, ""},
		"in the daemon":            {false, "", login, ""},
		"unknown":                  {true, "none", login, `HOSTS_OS_CLOUD is "none"`},
		"a cloud without a secret": {true, "empty", login, `HOSTS_OS_CLOUD is "empty"`},
	} {
		d := Deps{Cloud: cloud, Functions: Functions{alone: tc.alone}}
		account, err := d.Account("HOSTS_OS_CLOUD", tc.cloud, where, tc.login)
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case account != nil:
			got = account.String()
		}
		if !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestMountedAccount: a function on Knative takes its own account from a clouds.yaml that is mounted as a Secret: its
// files are links through a folder which the kubelet replaces, and no one may write them. secure.yaml may be one of
// them.
func TestMountedAccount(t *testing.T) {
	t.Parallel()
	secret := map[string]string{
		"clouds.yaml": "clouds: {hosts: {auth: {auth_url: 'http://127.0.0.1:1/v3', username: hosts, project_name: p}}}",
		"secure.yaml": "clouds: {hosts: {auth: {password: canary}}}",
	}
	started := func(change map[string]string) (string, error) {
		account := ""
		declaration := Event[accountConfig]{
			Name: "hosts", Schedule: Hourly,
			Build: func(cfg accountConfig, d Deps) (eventx.Func, error) {
				own, err := d.Account("HOSTS_OS_CLOUD", cfg.Cloud, cfg.OpenStack, cfg.Login)
				if own != nil {
					account = own.String()
				}
				return func(context.Context, cloudevents.Event) error { return nil }, err
			},
		}.declared()
		p, err := newProcess(t.Context(), environment(change), Texts{}, io.Discard, []function{declaration})
		if err == nil {
			p.Close(context.Background())
		}
		return account, err
	}
	file := filepath.Join(mountSecret(t, secret), "clouds.yaml")
	env := map[string]string{
		"FUNCTION_TARGET": "hosts", "EVENT_KEY": "k", "OS_CLIENT_CONFIG_FILE": file, "HOSTS_OS_CLOUD": "hosts",
		"OS_USERNAME": "other",
	}
	if got, err := started(env); err != nil || !strings.HasPrefix(got, "the user hosts of") {
		t.Errorf("got %q %v", got, err)
	}
	env["HOSTS_OS_CLOUD"] = "none"
	if _, err := started(env); err == nil || !strings.Contains(err.Error(), `HOSTS_OS_CLOUD is "none": `+file) ||
		strings.Contains(err.Error(), "canary") {
		t.Errorf("an unknown cloud: got %v", err)
	}
	delete(secret, "secure.yaml")
	env["HOSTS_OS_CLOUD"] = "hosts"
	env["OS_CLIENT_CONFIG_FILE"] = filepath.Join(mountSecret(t, secret), "clouds.yaml")
	if got, err := started(env); err == nil || !strings.Contains(err.Error(), `HOSTS_OS_CLOUD is "hosts"`) {
		t.Errorf("a cloud without its password: got %q %v", got, err)
	}
}

// accountConfig is the configuration of a function with an account of its own.
type accountConfig struct {
	Cloud     string `env:"HOSTS_OS_CLOUD"`
	OpenStack openstack.Config
	Login     openstack.Credentials
}

// mountSecret makes a folder as the kubelet mounts a Secret: of links through ..data, and read-only.
func mountSecret(t *testing.T, files map[string]string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	const version = "..2026_01_02_03_04_05.1"
	run := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(folder, version)
	run(os.Mkdir(data, 0o700))
	run(os.Symlink(version, filepath.Join(folder, "..data")))
	for name, text := range files {
		run(os.WriteFile(filepath.Join(data, name), []byte(text), 0o400))
		run(os.Symlink(filepath.Join("..data", name), filepath.Join(folder, name)))
	}
	for _, one := range []string{data, folder} {
		run(os.Chmod(one, 0o500))
		t.Cleanup(func() { _ = os.Chmod(one, 0o700) }) // to be deleted
	}
	return folder
}

func TestTwoOfOneName(t *testing.T) {
	if _, err := list([]Function{things, tickThings, things}); err == nil || !strings.Contains(err.Error(), "things") {
		t.Errorf("got %v", err)
	}
	if _, err := list(nil); err == nil {
		t.Error("no function at all is taken")
	}
}

// TestCloudCalls: a function that limits its calls to OpenStack has a cloud of its own, and the others share one.
func TestCloudCalls(t *testing.T) {
	clouds := map[string]*openstack.Cloud{}
	declaration := func(name string, calls int) function {
		return Event[struct{}]{
			Name: name, Schedule: Hourly, CloudCalls: calls,
			Build: func(_ struct{}, d Deps) (eventx.Func, error) {
				clouds[name] = d.Cloud
				return func(context.Context, cloudevents.Event) error { return nil }, nil
			},
		}.declared()
	}
	all := []function{
		declaration("a", 0), declaration("b", 8), declaration("c", 8), declaration("d", 0),
	}
	p, err := newProcess(t.Context(), environment(nil), Texts{}, io.Discard, all)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	if clouds["a"] != clouds["d"] || clouds["b"] == clouds["a"] || clouds["c"] == clouds["a"] ||
		clouds["b"] == clouds["c"] || len(p.limited) != 2 {
		t.Errorf("the clouds are %v", clouds)
	}
}
