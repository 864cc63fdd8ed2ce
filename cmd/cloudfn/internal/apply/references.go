package apply

import (
	"context"
	"fmt"
	"net/url"
	"slices"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// referring are the fields of specs that name something else: the kind of resource that is managed, or that
// GET /v1/resources lists.
var referring = map[string]struct {
	what      string
	kind      domain.Kind
	resources string
}{
	"spec.flavor":          {"flavor", "", "flavors"},
	"spec.image":           {"image", domain.KindImage, "images"},
	"spec.networks":        {"network", "", "networks"},
	"spec.network":         {"network", "", "networks"},
	"spec.key_name":        {"key pair", "", "keypairs"},
	"spec.security_groups": {"security group", "", "security_groups"},
	"spec.volumes":         {"managed volume", domain.KindVolume, ""},
	"spec.configmaps":      {"Configmap", domain.KindConfigmap, ""},
}

// references finds what documents name and nothing has. The lists are read when the first document needs them.
type references struct {
	*cli.App
	all   []documents.Document
	known map[string][]string // names and ids, by kind
}

// check returns what is wrong with the references that a document adds. Those that stay are not its fault.
func (r *references) check(ctx context.Context, d documents.Document, c managed.Change) error {
	schedule, _ := d.Fields["schedule"].(map[string]any)
	for _, f := range c.Fields {
		to, isReference := referring[f.Field]
		if !isReference || to.resources != "" && schedule["region"] != nil { // the lists are of one region
			continue
		}
		before := texts(f.From)
		for _, name := range texts(f.To) {
			if slices.Contains(before, name) || name == "" || to.resources == "images" && cli.IsID(name) {
				continue // an image of the community is in no list
			}
			known, err := r.names(ctx, to.kind, to.resources)
			if err != nil {
				return err
			}
			if known == nil || slices.Contains(known, name) {
				continue
			}
			text := fmt.Sprintf("%s: there is no %s %q", f.Field, to.what, name)
			if near := apperr.Nearest(name, known); near != "" {
				text += fmt.Sprintf("; did you mean %q?", near)
			}
			return exit.Usagef("%s", text)
		}
	}
	return nil
}

// texts are a field's value, or its entries.
func texts(value any) (all []string) {
	switch value := value.(type) {
	case string:
		return []string{value}
	case []any:
		for _, entry := range value {
			text, _ := entry.(string)
			all = append(all, text)
		}
	}
	return all
}

// names lists what a reference may name: what is managed or declared beside it, and what the cloud has. nil = unknown.
func (r *references) names(ctx context.Context, kind domain.Kind, resources string) ([]string, error) {
	key := string(kind) + resources
	if known, ok := r.known[key]; ok {
		return known, nil
	}
	known := []string{}
	if kind != "" {
		for _, d := range r.all {
			if d.Kind == string(kind) {
				known = append(known, d.Name)
			}
		}
		found, err := managed.Noun.Find(ctx, r.App, url.Values{"kind": {string(kind)}}, 0)
		if err != nil {
			return nil, err
		}
		for _, item := range found {
			known = append(known, item.Value.Name)
		}
	}
	if resources != "" {
		found, err := api.Get[api.Resources](ctx, r.API(), "/v1/resources", url.Values{"kinds": {resources}})
		if err != nil {
			return nil, err
		}
		if found.Value.Errors == nil {
			known = append(known, listed(found.Value)...)
		} else {
			known = nil
		}
	}
	r.known[key] = known
	return known, nil
}

// listed are the names and ids of resources.
func listed(r api.Resources) (all []string) {
	for _, f := range cli.Value(r.Flavors) {
		all = append(all, f.Name, f.ID)
	}
	for _, i := range cli.Value(r.Images) {
		all = append(all, i.Name)
	}
	for _, n := range cli.Value(r.Networks) {
		all = append(all, n.Name, n.ID)
	}
	for _, k := range cli.Value(r.Keypairs) {
		all = append(all, k.Name)
	}
	for _, g := range cli.Value(r.SecurityGroups) {
		all = append(all, g.Name, g.ID)
	}
	return all
}
