package main

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
)

// withName are the things that the commands' usage names, and that have names.
var withName = []string{
	"SERVER", "ORDER", "LEASE", "CONNECTION", "REQUEST", "NODE", "FLAVOR", "KIND NAME", "KEYPAIR",
}

// behind are the arguments and flags that a command needs behind the name.
var behind = map[string]string{
	"connections update": "--name x", "flavors update": "--description x", "leases extend": "--by 2h",
	"leases update": "--name x", "leases end": "--confirm-delete", "managed rollback": "3", "managed scale": "2",
	"managed update": "--set count=2", "nodes label": "rack=r1", "nodes update": "--region-zone x",
	"servers attach": "data", "servers deploy": "--image agent:1 --confirm-rebuild", "servers detach": "data",
	"servers resize":  "--flavor m1.large",
	"servers rebuild": "--confirm-rebuild",
	"servers rename":  "x", "servers set": "--name x", "servers unset": "--description",
	"servers detach-ip": "203.0.113.7", "servers add-security-group": "web", "servers remove-security-group": "web",
	"servers add-interface": "--network x", "servers remove-interface": "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01",
}

// TestEveryCommandSuggestsNames: a command that takes something by its name suggests the nearest name when nothing has
// the one that is given.
func TestEveryCommandSuggestsNames(t *testing.T) {
	t.Parallel()
	const one = `{"id": "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01", "name": "web-server", "status": %q, "kind": "trust",
		"instances": [{"name": "web-server"}]}`
	keys := map[string]string{
		"/v1/servers": "servers", "/v1/launch": "orders", "/v1/leases": "leases", "/v1/connections": "connections",
		"/v1/connections/requests": "requests", "/v1/nodes": "nodes", "/v1/flavors": "flavors",
		"/v1/managed/VirtualMachineDeployment": "managed", "/v1/resources": "keypairs",
	}
	serve := func(w http.ResponseWriter, r *http.Request) {
		if key := keys[r.URL.Path]; key != "" && r.Method == http.MethodGet {
			status := map[string]string{"orders": "running", "requests": "pending"}[key]
			fmt.Fprintf(w, `{%q: [`+one+`], "next": null}`, key, cmp.Or(status, "active"))
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"status": 404, "code": "not_found", "detail": "there is no such thing"}`)
	}
	var tried []string
	each(root(), func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		name := strings.Join(path, " ")
		use := regexp.MustCompile(`--.*|[][(]`).ReplaceAllString(c.Use, "")
		if c.HasSubCommands() || name == "managed put" { // the latter makes what has the name
			return
		}
		is := slices.IndexFunc(withName, func(noun string) bool { return strings.Contains(use, noun) })
		if is < 0 {
			return
		}
		a, _, _ := clitest.New(t, serve)
		a.Env = func(string) (string, bool) { return "", false }
		root := a.Root("cloudfn", commands)
		args := append(slices.Clone(path), "web-sever")
		if withName[is] == "KIND NAME" {
			args = append(slices.Clone(path), "VirtualMachineDeployment", "web-sever")
		}
		root.SetArgs(append(args, strings.Fields(behind[name])...))
		tried = append(tried, name)
		err := root.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), `did you mean "web-server"?`) {
			t.Errorf("%s: %v", strings.Join(args, " "), err)
		}
	})
	t.Logf("%d commands: %s", len(tried), strings.Join(tried, ", "))
	if len(tried) < 40 {
		t.Errorf("only %d commands take something by name: %v", len(tried), tried)
	}
}
