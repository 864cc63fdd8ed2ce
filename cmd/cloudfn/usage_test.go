package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// run runs a command line against an API that a test makes up, and gives its output, its notes and its error.
func run(t *testing.T, serve http.HandlerFunc, args ...string) (out, notes string, code int, err error) {
	t.Helper()
	a, stdout, stderr := clitest.New(t, serve)
	a.Env = func(string) (string, bool) { return "", false }
	root := a.Root("cloudfn", commands)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	if err != nil {
		code = a.Code(err)
	}
	return stdout.String(), stderr.String(), code, err
}

// TestNoFormatIsIgnored: a command that prints a text rejects what only tables have, before it does anything.
func TestNoFormatIsIgnored(t *testing.T) {
	t.Parallel()
	const server = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01"
	for args, want := range map[string]string{
		"callbacks listen -o csv":           "cloudfn callbacks listen takes only table, wide, json, yaml, name",
		"callbacks listen --sort name":      "--sort requires a table: cloudfn callbacks listen prints a text",
		"launch web --dry-run -f value":     "-o value: cloudfn launch takes only table, wide, json, yaml",
		"launch web --dry-run --no-headers": "--no-headers requires a table",
		"managed diff Volume v -ocsv":       "-o csv: cloudfn managed diff takes only table, wide, json, yaml",
		"managed diff Volume v -c x":        "--columns requires a table",
		"servers console -o csv " + server:  "-o csv: cloudfn servers console takes only",
		"nodes token n -o json":             "-o json: cloudfn nodes token takes only table, wide, value",
		"requests export -o json":           "cloudfn requests export takes only table; --format csv and ndjson",
		"resources -o csv":                  "one kind: cloudfn resources flavors -o csv",
		"resources images zones -f value":   "one kind: cloudfn resources images -o value",
		"version -o yaml":                   "-o yaml: cloudfn version takes only table, wide, value",
	} {
		out, _, code, err := run(t, func(_ http.ResponseWriter, r *http.Request) {
			t.Errorf("%s calls %s %s", args, r.Method, r.URL)
		}, strings.Fields(args)...)
		if code != exit.Usage || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s: %d, %v, %q", args, code, err, out)
		}
	}
}

// TestListsFitTerminals of 80 columns: ids and times are whole, and -o wide has the rest.
func TestListsFitTerminals(t *testing.T) {
	t.Parallel()
	const id, ends = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01", "2026-12-01T10:00:00Z"
	serve := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"leases": [{"id": %[1]q, "name": "workshop", "status": "pending", "start": %[2]q, "end": %[2]q,
			"reservations": [{"id": %[1]q, "type": "instance", "instance_id": %[1]q}], "events": []}],
			"connections": [{"id": %[1]q, "name": "build-farm", "status": "active", "ends_at": %[2]q,
				"actions": ["allocate", "start", "stop", "deallocate"], "quota": {"instances": 3}}], "next": null}`, id, ends)
	}
	for noun, rest := range map[string]string{
		"leases": "instance " + id, "connections": "allocate,start,stop,deallocate  0 of 3",
	} {
		out, _, _, err := run(t, serve, noun, "list")
		if err != nil || !strings.Contains(out, id) || !strings.Contains(out, "2026-12-01 10:00:00Z") {
			t.Errorf("%s: %v\n%s", noun, err, out)
		}
		for line := range strings.Lines(out) {
			if len(line) > 80+len("\n") {
				t.Errorf("%s: %d columns: %s", noun, len(line)-1, line)
			}
		}
		if out, _, _, err := run(t, serve, noun, "list", "-o", "wide"); err != nil || !strings.Contains(out, rest) {
			t.Errorf("%s, wide: %v\n%s", noun, err, out)
		}
	}
}

// TestFlagsWithoutEffect are named: one thing is not sorted, and JSON of one kind has no order of its own.
func TestFlagsWithoutEffect(t *testing.T) {
	t.Parallel()
	serve := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"id": "c", "status": "active", "flavors": [{"name": "b"}, {"name": "a"}],
			"callbacks": [{"id": "2"}, {"id": "1"}], "next": null}`)
	}
	const callback = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01"
	for args, flag := range map[string]string{
		"callbacks show --sort id " + callback:          "--sort",
		"callbacks show --no-headers " + callback:       "--no-headers",
		"callbacks show -c id -o json " + callback:      "",
		"callbacks list -o name -c id":                  "--columns",
		"callbacks list --sort id --no-headers -c id":   "",
		"callbacks list --sort id --no-headers -o json": "",
		"callbacks list --sort id --no-headers -o csv":  "",
		"resources flavors --sort name -o json":         "--sort",
		"resources flavors --sort name":                 "",
	} {
		_, notes, _, err := run(t, serve, strings.Fields(args)...)
		if err != nil || !strings.HasPrefix(notes, flag) || (notes == "") != (flag == "") {
			t.Errorf("%s: %q, %v", args, notes, err)
		}
	}
}

// TestErrorsNameFlags: what the API says of a field is said of the flag that set it, and of no flag where a file or an
// argument did.
func TestErrorsNameFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	order := dir + "/order.yaml"
	if err := os.WriteFile(order, []byte("{name: w, flavor: f, image: i, networks: [a]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	const launch, lease = "launch w --flavor f --image i ", "leases create l --duration 1h "
	const id = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01"
	for _, c := range []struct{ args, field, want string }{
		{launch + "--network a --network b", "networks[1]", "--network b"},
		{launch + "--network a --port p", "networks[1].port_id", "--port p"},
		{launch, "networks", "--network"},
		{launch + "--boot-volume 20", "boot_volume.size_gb", "--boot-volume (size_gb)"},
		{launch + "--volume 5 --volume size=9,type=x", "volumes[1].type", "--volume size=9,type=x (type)"},
		{launch + "--metadata k=v", "metadata.k", "--metadata k"},
		{launch + "--lease 2d", "lease.duration", "--lease"},
		{launch + "--min-vcpus 3", "min.vcpus", "--min-vcpus"},
		{launch, "name", "name"},
		{launch, "flavors", "flavors"},
		{"launch --file " + order, "networks[0]", "networks[0]"},
		{"launch --image x --file " + order, "image", "--image"},
		{lease + "--hosts 2 --vcpus 1", "reservations[0].min", "--hosts"},
		{lease + "--hosts 2 --vcpus 1", "reservations[0].vcpus", "--vcpus"},
		{lease + "--hosts 2 --instance " + id, "reservations[1].instance_id", "--instance"},
		{lease + "--hosts 2", "duration", "--duration"},
		{lease + "--hosts 2 --capability a", "reservations[0].capabilities[0]", "--capability a"},
		{
			"connections create --kind trust --actions stop --expires 1h --image " + id,
			"limits.images[0]", "--image " + id,
		},
		{
			"connections create --kind trust --actions stop --expires 1h --usable-by user:a --usable-by user:b",
			"usable_by[1]", "--usable-by user:b",
		},
		{"managed put Volume v --set size_gb=x", "spec.size_gb", "--set size_gb"},
		{"managed put Volume v --set size_gb=x", "spec.type", "spec.type"},
		{"orders list --status x", "status", "--status"},
	} {
		_, _, code, err := run(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/v1/servers") {
				fmt.Fprint(w, `{"id": "s", "name": "s", "instance": {"id": "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01"}}`)
				return
			}
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"detail": "other: is wrong; %[1]s: is wrong, too", "code": "invalid", "errors": [
				{"field": "other", "detail": "is wrong"}, {"field": %[1]q, "detail": "is wrong, too"}]}`, c.field)
		}, strings.Fields(c.args)...)
		if want := "other: is wrong; " + c.want + ": is wrong, too"; code != exit.Usage || err.Error() != want {
			t.Errorf("%s, %s: %d, %v, want %s", c.args, c.field, code, err, want)
		}
	}
}

// TestConnectionsTakeNames of images and networks, and send their ids.
func TestConnectionsTakeNames(t *testing.T) {
	t.Parallel()
	const id = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e0"
	create := "connections create --kind trust --actions allocate --expires 1h "
	update := "connections update " + id + "9 "
	for args, want := range map[string]string{
		create + "--image cirros --image " + id + "2 --network private":                               `{"images":["` + id + `1","` + id + `2"],"networks":["` + id + `3"]}`,
		"connections requests create --project p --why w --actions start --expires 1h --image cirros": `{"images":["` + id + `1"]}`,
		update + "--image none":                  `{"images":null}`,
		update + "--image cirros":                `{"images":["` + id + `1"]}`,
		create + "--image cirrus":                `--image: there is no image "cirrus"; did you mean "cirros"?`,
		create + "--image twice":                 `--image: 2 images are named "twice"`,
		create + "--image x --auth-url http://k": "--image must be ids: they are those of the cloud of --auth-url",
	} {
		var sent struct{ Limits json.RawMessage }
		_, _, _, err := run(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				_ = json.NewDecoder(r.Body).Decode(&sent)
			}
			fmt.Fprintf(w, `{"images": [{"id": "%[1]s1", "name": "cirros"}, {"id": "%[1]s4", "name": "twice"},
				{"id": "%[1]s5", "name": "twice"}], "networks": [{"id": "%[1]s3", "name": "private"}]}`, id)
		}, strings.Fields(args)...)
		got := string(sent.Limits)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", args, got)
		}
	}
}

// TestStatusOfTheDaemon has no function: it runs them all.
func TestStatusOfTheDaemon(t *testing.T) {
	t.Parallel()
	serve := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"version": "v1", "function": "", "postgres": {"reachable": true}, "keystone": {"reachable": true}}`)
	}
	for _, format := range []string{"yaml", "json", "table"} {
		a, out, _ := clitest.New(t, nil)
		server := httptest.NewServer(http.HandlerFunc(serve))
		defer server.Close()
		a.Env = func(string) (string, bool) { return "", false }
		root := a.Root("cloudfn", commands)
		root.SetArgs([]string{"status", "--url", server.URL, "-o", format})
		err := root.ExecuteContext(t.Context())
		if err != nil || strings.Contains(strings.ToLower(out.String()), "function") {
			t.Errorf("%s: %s, %v", format, out, err)
		}
	}
}

// TestGet lists and shows nouns as kubectl does, with the flags of list and show.
func TestGet(t *testing.T) {
	t.Parallel()
	const id = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01"
	serve := func(w http.ResponseWriter, r *http.Request) {
		text := `{"id": "` + id + `", "name": "web", "status": "ACTIVE"}`
		switch path := strings.TrimPrefix(r.URL.Path, "/v1/"); {
		case strings.HasSuffix(path, id):
		case path == "resources":
			text = `{"images": [{"id": "1", "name": "cirros"}], "keypairs": [{"name": "laptop"}]}`
		case path == "servers" && r.URL.Query().Get("status") == "ERROR":
			text = `{"servers": [], "next": null}`
		default:
			text = fmt.Sprintf(`{%q: [%s], "next": null}`, strings.ReplaceAll(path, "-", "_"), text)
		}
		fmt.Fprint(w, text)
	}
	statuses, _, _, _ := run(t, serve, "__complete", "servers", "list", "--status", "")
	for args, want := range map[string]string{
		"__complete get servers --status ":     statuses,
		"get servers -o name":                  "web\n",
		"get srv -o json -c name":              "[\n  {\n    \"name\": \"web\"\n  }\n]\n",
		"get servers --status error -o name":   "",
		"get server web -f value -c id":        id + "\n",
		"get volumes -o name":                  id + "\n",
		"get vol web -o value -c name":         "web\n",
		"get images -o name":                   "cirros\n",
		"get keypairs -o name":                 "laptop\n",
		"get leases -o name":                   id + "\n",
		"get lease " + id + " -o name":         id + "\n",
		"get server web --status error":        "--status does nothing here: see cloudfn servers show --help",
		"get server web -w":                    "--watch does nothing here: see cloudfn servers show --help",
		"get order web --wait --limit 3":       "--limit does nothing here: see cloudfn orders show --help",
		"get orders --wait":                    "--wait does nothing here: see cloudfn orders list --help",
		"get keypairs laptop":                  `unexpected argument "laptop": cloudfn get keypairs`,
		"get server web db":                    `unexpected argument "db": cloudfn get servers [NAME]`,
		"get sevrers":                          `unknown command "sevrers" for "cloudfn get"; did you mean "servers"?`,
		"__complete get server w":              "web\tactive\n:4\n",
		"__complete get servers --connection ": id + "\t ACTIVE\n:4\n",
	} {
		out, _, _, err := run(t, serve, strings.Split(args, " ")...)
		if err != nil {
			out = err.Error()
		}
		if out != want {
			t.Errorf("%s: %q, want %q", args, out, want)
		}
	}
}

// TestUnknownCommands name the right one: of other tools, in another order of words, and with flags of theirs.
func TestUnknownCommands(t *testing.T) {
	t.Parallel()
	program := root()
	quoted := regexp.MustCompile(`"cloudfn ([^"]+)"`)
	for args, want := range map[string]string{
		"resize web --flavor x":       `did you mean "cloudfn servers resize"?`,
		"resume x":                    `did you mean "cloudfn servers resume" or "cloudfn connections resume"?`,
		"delete":                      `did you mean "cloudfn servers delete" or "cloudfn callbacks delete" or "cloudfn co`,
		"list servers":                `"cloudfn servers list"?`,
		"create volume x --size-gb 3": `"cloudfn volumes create"?`,
		"describe server x":           `"cloudfn servers show"?`,
		"image list --public":         `"cloudfn resources images"?`,
		"networks list":               `"cloudfn resources networks"?`,
		"floating ip list":            `"cloudfn floating-ips list"?`,
		"security group rule create":  `"cloudfn security-groups"?`,
		"server add security group w": `"cloudfn servers add-security-group"?`,
		"server add floating ip w":    `"cloudfn servers attach-ip"?`,
		"server add port w":           `"cloudfn servers add-interface"?`,
		"server remove volume w v":    `"cloudfn servers detach"?`,
		"server remove floating ip w": `"cloudfn servers detach-ip"?`,
		"server remove network w":     `"cloudfn servers remove-interface"?`,
		"server add volume w v":       `"cloudfn servers attach"?`,
		"server create w --image i":   `"cloudfn launch"?`,
		"server ssh w":                `"cloudfn ssh"?`,
		"server image create w":       `"cloudfn servers snapshot"?`,
		"server event list w":         `"cloudfn servers history"?`,
		"console log show w":          `"cloudfn servers console"?`,
		"compute service list":        `"cloudfn nodes"?`,
		"availability zone list":      `"cloudfn resources zones"?`,
		"usage show":                  `"cloudfn stats"?`,
		"quota show":                  `"cloudfn resources quota"?`,
		"trust create":                `"cloudfn connections"?`,
		"reservation lease create":    `"cloudfn leases"?`,
		"stack create":                `"cloudfn apply"?`,
		"whoami":                      `"cloudfn login"?`,
		"server migrate w":            `, and cloudfn has no such command: use openstack server migrate`,
		"network create secret":       `, and cloudfn has no such command: use openstack network create`,
		"volume snapshot create s":    `, and cloudfn has no such command: use openstack volume snapshot create`,
		"server group create g":       `, and cloudfn has no such command: use openstack server group create`,
		"servrs":                      `did you mean "servers"?`,
		"volumes lst":                 `did you mean "list"?`,
		"nonsense":                    `unknown command "nonsense" for "cloudfn"`,
		"volumes nonsense":            `unknown command "nonsense" for "cloudfn volumes"`,
		"--nonsense":                  `unknown flag: --nonsense`,
	} {
		_, _, _, err := run(t, nil, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", args, err, want)
			continue
		}
		_, meant, _ := strings.Cut(err.Error(), "; ")
		for _, path := range quoted.FindAllStringSubmatch(meant, -1) {
			found, rest, err := program.Find(strings.Fields(path[1]))
			if err != nil || found == program || len(rest) > 0 && !slices.Contains(found.ValidArgs, rest[0]) {
				t.Errorf("%s: there is no command %s", args, path[0])
			}
		}
	}
}
