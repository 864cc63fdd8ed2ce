package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cloudfn/cloudfn/shared/run"
)

// secrets are the Secrets of knative/README.md: what each is for, and who holds it where no function declares it.
var secrets = []struct{ name, holders, what string }{
	{
		"database", "all functions, each only its own key",
		"Postgres, with a role that may do what the function declares",
	},
	{"database-owner", "migrate", "Postgres, as the owner"},
	{"pgbouncer", "PgBouncer", "where Postgres is, and the passwords of the roles"},
	{"openstack", "", "the service account"},
	{"openstack-delegate", "", "a service account without any role, to which trusts are made"},
	{"openstack-leases", "", "a service account with the role `admin`, which reserves hosts"},
	{
		"openstack-nodes", "",
		"a service account (by default `admin`; [less is enough](../docs/operation.md#nodes)), " +
			"which watches and drains hosts",
	},
	{"connections", "", "decrypts delegated credentials, and orders through connections"},
	{"managed", "", "decrypts `user_data` and payloads of managed resources"},
	{
		"events", "event functions, functions that wake them, and a copy in PingSources",
		"proves the source of an event; also contains `WAKE_URL`",
	},
	{"seal", "", "decrypts the secrets of callbacks"},
}

// onKnative are the lists of functions in knative/README.md: the Secrets, the commands of kn, and the scale.
func onKnative(made files, d run.Description) error {
	table, err := secretTable(d)
	if err != nil {
		return err
	}
	const page = "knative/README.md"
	if err := replace(made, page, "secrets", table); err != nil {
		return err
	}
	begin, end := "# functions: made by `make generate`\n", "# end of functions\n"
	if err := replaceBetween(made, page, begin, end, knCommands(d)); err != nil {
		return err
	}
	return replace(made, page, "scale", scaleTable(d))
}

func secretTable(d run.Description) (string, error) {
	held := map[string][]string{}
	for _, f := range d.Functions {
		for _, name := range f.Secrets {
			held[name] = append(held[name], f.Name)
		}
	}
	var out strings.Builder
	out.WriteString("| Secret | held by | what for |\n|---|---|---|\n")
	for _, s := range secrets {
		holders := s.holders
		if holders == "" {
			holders = strings.Join(held[s.name], ", ")
		}
		fmt.Fprintf(&out, "| `cloudfn-%s` | %s | %s |\n", s.name, holders, s.what)
		delete(held, s.name)
	}
	if len(held) > 0 {
		return "", fmt.Errorf("secrets that scripts/declarations/knative.go does not describe: %v", held)
	}
	return out.String(), nil
}

// knCommands create each function. What those of a kind have in common is in the arrays http and event.
func knCommands(d run.Description) string {
	var out strings.Builder
	for _, kind := range []string{"http", "event"} {
		for _, f := range d.Functions {
			if f.Kind != kind {
				continue
			}
			fmt.Fprintf(&out, "kn service apply %s \"${%s[@]}\" --env FUNCTION_TARGET=%s --scale ..%d", f.Name, kind,
				f.Name, f.Scale.MaxPods)
			fmt.Fprintf(&out, " --concurrency-limit %d", f.Scale.Concurrency)
			for _, secret := range f.Secrets {
				out.WriteString(" --env-from secret:cloudfn-" + secret)
			}
			out.WriteString("\n")
		}
	}
	return out.String()
}

func scaleTable(d run.Description) string {
	var out strings.Builder
	out.WriteString("| Service | concurrency (target) | max-scale | connections |\n|---|---|---|---|\n")
	total := 0
	for _, f := range d.Functions {
		concurrency := strconv.Itoa(f.Scale.Concurrency)
		if f.Scale.Target > 0 {
			concurrency += fmt.Sprintf(" (%d)", f.Scale.Target)
		}
		connections := f.Scale.MaxPods * f.Connections()
		total += connections
		fmt.Fprintf(&out, "| %s | %s | %d | %d |\n", f.Name, concurrency, f.Scale.MaxPods, connections)
	}
	fmt.Fprintf(&out, "| together | | | %d |\n", total)
	return out.String()
}
