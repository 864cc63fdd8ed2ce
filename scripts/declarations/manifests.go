package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

//go:embed manifests.tmpl
var templates string

// manifests are the Knative Services, the PingSources, the lists of both, the func.yaml of each HTTP function, and the
// functions' database roles.
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
		if f.Schedule != "" {
			if err := render("knative/sources/"+f.Name+".yaml", "source", f); err != nil {
				return err
			}
		}
		if f.Kind == "event" {
			continue
		}
		path := "functions/" + f.Name + "/func.yaml"
		if err := render(path, "func", f); err != nil {
			return err
		}
		if f.Name == "resources" { // for func without --path
			made["func.yaml"] = made[path]
		}
	}
	for path, name := range map[string]string{
		"knative/services/kustomization.yaml":              "services",
		"knative/sources/kustomization.yaml":               "sources",
		"knative/roles.sql":                                "roles",
		"knative/overlays/production/secrets/userlist.txt": "users",
	} {
		if err := render(path, name, d.Functions); err != nil {
			return err
		}
	}
	for overlay, at := range map[string]string{ // after the user in a URL
		"knative/overlays/local":      "local@10.244.0.1:6432/cloudfn",
		"knative/overlays/production": "CHANGE-ME@pgbouncer:6432/cloudfn",
		"test/e2e/overlay":            "e2e-canary@10.244.0.1:6432/cloudfn_e2e",
	} {
		data := struct {
			At        string
			Functions []run.Declaration
		}{at, d.Functions}
		if err := render(overlay+"/secrets/database.env", "urls", data); err != nil {
			return err
		}
	}
	return nil
}

// grants are the rights of the functions' roles.
func grants(made files, d run.Description) error {
	roles := map[string][]map[string]string{}
	for _, f := range d.Functions {
		roles[f.Role()] = append(roles[f.Role()], f.Rights())
	}
	var out strings.Builder
	out.WriteString("-- Made from functions/*/function.go by `make generate`.\n" +
		"-- What the database roles of functions may do. migrate runs it after the migrations, every time, when the " +
		"roles exist\n" +
		"-- (knative/roles.sql makes them).\n" +
		"select pg_advisory_xact_lock(7166736203); -- two would get in each other's way\ndo $$\nbegin\n")
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		out.WriteString("    if exists (select from pg_roles where rolname = '" + role + "') then\n" +
			"        revoke all on all tables in schema public from " + role + ";\n" +
			"        revoke all on all functions in schema public from " + role + ";\n" +
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

// functionList is the list of all functions for test/contract, which serves them in its own process.
func functionList(made files, d run.Description) error {
	var imports, list strings.Builder
	for _, f := range d.Functions {
		name := strings.ReplaceAll(f.Name, "-", "")
		fmt.Fprintf(&imports, "\t%s \"github.com/cloudfn/cloudfn/functions/%s\"\n", name, f.Name)
		fmt.Fprintf(&list, "\t%s.Function,\n", name)
	}
	text := "// Code generated from functions/main.go by `make generate`. DO NOT EDIT.\n\n" +
		"package contract_test\n\nimport (\n" + imports.String() + "\n" +
		"\t\"github.com/cloudfn/cloudfn/shared/run\"\n)\n\n" +
		"// everyFunction are the functions of the daemon.\n" +
		"var everyFunction = []run.Function{\n" + list.String() + "}\n"
	made["test/contract/functions_test.go"] = []byte(text)
	return nil
}
