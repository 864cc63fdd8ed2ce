package main

import (
	"bytes"
	_ "embed"
	"strings"
	"text/template"

	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

//go:embed manifests.tmpl
var templates string

// manifests are the Knative Services, the PingSources, and the lists of both.
func manifests(made files, d run.Description) error {
	t, err := template.New("").Parse(templates)
	if err != nil {
		return err
	}
	render := func(path, name string, data any) error {
		var out bytes.Buffer
		err := t.ExecuteTemplate(&out, name, data)
		made[path] = append(bytes.TrimSpace(out.Bytes()), '\n')
		return err
	}
	for _, f := range d.Functions {
		if err := render("knative/services/"+f.Name+".yaml", "service", f); err != nil {
			return err
		}
		if f.Kind == "event" {
			if err := render("knative/sources/"+f.Name+".yaml", "source", f); err != nil {
				return err
			}
		}
	}
	if err := render("knative/services/kustomization.yaml", "services", d.Functions); err != nil {
		return err
	}
	return render("knative/sources/kustomization.yaml", "sources", d.Functions)
}

// grants are the rights of the two database roles that functions share by their kind.
func grants(made files, d run.Description) error {
	roles := map[string][]map[string]string{}
	for _, f := range d.Functions {
		if role := f.Role(); role != "" {
			roles[role] = append(roles[role], f.Rights())
		}
	}
	var out strings.Builder
	out.WriteString("-- Made from functions/*/function.go by `make generate`.\n" +
		"-- What the database roles of functions may do. migrate runs it after the migrations, every time, when the " +
		"roles exist\n" +
		"-- (knative/roles.sql makes them).\n" +
		"select pg_advisory_xact_lock(7166736203); -- two at once would get in each other's way\ndo $$\nbegin\n")
	for _, role := range []string{"cloudfn_functions", "cloudfn_events"} {
		out.WriteString("    if exists (select from pg_roles where rolname = '" + role + "') then\n" +
			"        revoke all on all tables in schema public from " + role + ";\n" +
			"        grant usage on schema public to " + role + ";\n")
		for line := range strings.Lines(postgres.Grants(role, roles[role]...)) {
			out.WriteString("        " + line)
		}
		out.WriteString("    end if;\n")
	}
	out.WriteString("end $$;\n")
	made["shared/postgres/grants.sql"] = []byte(out.String())
	return nil
}
