package contract_test

import (
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// zeroIDs: no operation takes the zero UUID for an absent one. A launch would go elsewhere than its caller asked for.
func (m *matrix) zeroIDs(t *testing.T) {
	n := 0
	for _, o := range m.operations {
		if !withToken(o) || isEvent(o) {
			continue
		}
		example := m.ask(o, m.mine)
		refuses := func(field string, a ask, body string) {
			n++
			got := m.client.As(projectAdmin().token()).Do(t, o.method, o.target(t, a), body, o.header(a, body)...)
			if got.Status != 400 || !testkit.Names(t, got, field) {
				t.Errorf("%s with a zero %s: got %d %s", o.OperationID, field, got.Status, got.Body)
			}
		}
		body := o.body(t, example)
		for _, p := range o.params {
			if p.In == "query" && p.Schema.Value.Format == "uuid" {
				a := example
				a.query = append(slices.Clone(a.query), p.Name+"="+uuid.Nil.String())
				refuses(p.Name, a, body)
			}
		}
		if body == "" {
			continue
		}
		isID := func(s *openapi3.Schema) bool { return s.Format == "uuid" }
		for name, f := range fieldsOf(o.RequestBody.Value.Content.Get("application/json").Schema.Value, isID) {
			refuses(name, example, changed(t, body, f.set, uuid.Nil.String()))
		}
	}
	if n < 40 {
		t.Errorf("the document has only %d fields with ids", n)
	}
}

// unknownFilters: a list that is asked for a status, or another of a few words, that is unknown says so.
func (m *matrix) unknownFilters(t *testing.T) {
	n := 0
	for _, o := range m.operations {
		for _, p := range o.params {
			schema := p.Schema.Value
			if schema.Items != nil {
				schema = schema.Items.Value
			}
			isWord := schema.Enum != nil || slices.Contains([]string{"status", "kind", "type"}, p.Name)
			if !withToken(o) || p.In != "query" || !isWord {
				continue
			}
			n++
			a := m.ask(o, m.mine)
			a.query = append(slices.Clone(a.query), p.Name+"=nonsense")
			body := o.body(t, a)
			got := m.client.As(projectAdmin().token()).Do(t, o.method, o.target(t, a), body, o.header(a, body)...)
			if got.Status != 400 || !testkit.Names(t, got, p.Name) && !testkit.Names(t, got, p.Name+"[0]") {
				t.Errorf("%s with %s=nonsense: got %d %.300s", o.OperationID, p.Name, got.Status, got.Body)
			}
		}
	}
	if n < 15 {
		t.Errorf("the document has only %d such parameters", n)
	}
}

func projectAdmin() caller {
	isAdmin := func(c caller) bool { return c.scope == ofProject && c.has("admin") }
	return callers[slices.IndexFunc(callers, isAdmin)]
}
