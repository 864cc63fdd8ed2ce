package main

import (
	"html/template"
	"iter"
	"slices"
	"strings"
)

// page is what the template shows.
type page struct {
	Title, Version string
	About          template.HTML
	Style          template.CSS
	Tags           []tag
	Errors         []problem
	Schemas        []schema
}

type tag struct {
	Name       string
	About      template.HTML
	Headers    []field // of each of its events
	Operations []operation
}

type operation struct {
	tag                       string
	ID, Method, Path, Summary string
	About                     template.HTML
	Auth                      string
	Event                     bool // sent by cloudfn, and not to it
	Params                    []field
	Body                      *body
	Answers                   []answer
	Usual                     []answer // those that mean what they mean everywhere
	Curl                      []example
	Shown                     []example // what the answers look like
}

type body struct {
	Name     string // of its type, when this is where that is shown
	Type     kind
	Optional bool
	Fields   []field
}

type answer struct {
	Status  string
	About   template.HTML
	Codes   []string
	Types   []kind
	Headers []field
}

type example struct{ Name, Text string }

// schema is a named type that has more to say than fits where it is used.
type schema struct {
	Name   string
	About  template.HTML
	Values []string
	Fields []field
	OneOf  []kind
}

func newPage(doc document) page {
	info := doc.at("info")
	p := page{
		Title: info.text("title"), Version: info.text("version"), About: markdown(info.text("description")),
		Style: template.CSS(style), Errors: problems(doc), //nolint:gosec // ours
	}
	at := map[string]int{}
	for _, t := range doc.at("tags").items() {
		at[t.text("name")] = len(p.Tags)
		p.Tags = append(p.Tags, tag{Name: t.text("name"), About: markdown(t.text("description"))})
	}
	shown := map[string]bool{}
	for o := range operations(doc) {
		t := &p.Tags[at[o.tag]]
		if o.Event && o.Body != nil {
			t.Headers, o.Params = o.Params, nil // the same of all
		}
		if o.Body != nil && shown[o.Body.Name] {
			o.Body.Name = ""
		} else if o.Body != nil {
			shown[o.Body.Name] = true
		}
		t.Operations = append(t.Operations, o)
	}
	for name, s := range doc.at("components", "schemas").pairs() {
		s.name = name
		if worthALink(s) && !shown[name] {
			p.Schemas = append(p.Schemas, newSchema(s))
		}
	}
	return p
}

// operations are all that there are, with the events.
func operations(doc document) iter.Seq[operation] {
	return func(yield func(operation) bool) {
		for _, section := range []string{"paths", "webhooks"} {
			for path, item := range doc.at(section).pairs() {
				for method, op := range item.pairs() {
					if op.text("operationId") == "" {
						continue // what all operations of the path share
					}
					o := newOperation(doc, op, slices.Concat(item.get("parameters").items(), op.get("parameters").items()), method, path)
					if o.Event = section == "webhooks"; !yield(o) {
						return
					}
				}
			}
		}
	}
}

func newOperation(doc document, op node, params []node, method, path string) operation {
	o := operation{
		ID: op.text("operationId"), Method: strings.ToUpper(method), Path: path, Summary: op.text("summary"), About: markdown(op.text("description")),
		Auth: auth(doc, op), tag: op.get("tags").words()[0],
	}
	for _, p := range params {
		if p.text("name") == "X-Request-Id" {
			continue // the introduction says it once
		}
		f := describe(p.get("schema"))
		f.Name, f.In, f.Required, f.About = p.text("name"), p.text("in"), p.required(), markdown(p.text("description"))
		o.Params = append(o.Params, f)
	}
	if request := op.get("requestBody"); request.there() {
		s := request.get("content").get("application/json").get("schema")
		if s.get("properties").there() {
			o.Body = &body{Name: s.name, Type: typeOf(s), Optional: !request.required(), Fields: fieldsOf(s, depth)}
		}
	}
	for status, response := range op.get("responses").pairs() {
		a := newAnswer(status, response)
		if own := lookup(response.over, "description"); own == nil && len(a.Codes) > 0 {
			o.Usual = append(o.Usual, a)
		} else {
			o.Answers = append(o.Answers, a)
		}
		o.Shown = append(o.Shown, shown(status, response)...)
	}
	if strings.HasPrefix(path, "/") {
		o.Curl = curls(o, op, params)
	} else {
		o.Shown = slices.Concat(bodies(op), o.Shown)
	}
	return o
}

// auth is what the caller has to show.
func auth(doc document, op node) string {
	security := op.get("security")
	if !security.there() {
		security = doc.at("security")
	}
	for _, one := range security.items() {
		for name := range one.pairs() {
			return map[string]string{
				"keystoneToken": "a Keystone token", "deployToken": "the token of the deployment", "eventKey": "the key of events",
				"consoleSession": "a session of the console",
			}[name]
		}
	}
	return ""
}

func newAnswer(status string, response node) answer {
	a := answer{Status: status, About: markdown(response.text("description"))}
	for name, h := range response.get("headers").pairs() {
		if name == "X-Request-Id" {
			continue
		}
		f := describe(h.get("schema"))
		f.Name, f.Required, f.About = name, h.required(), markdown(h.text("description"))
		a.Headers = append(a.Headers, f)
	}
	for kind, media := range response.get("content").pairs() {
		if kind == "application/problem+json" {
			a.Codes = codes(media.get("schema"))
			continue
		}
		t := typeOf(media.get("schema"))
		if t.Link == "" {
			t.Text = kind
		}
		a.Types = append(a.Types, t)
	}
	return a
}

// codes are the codes that a problem may have.
func codes(schema node) []string {
	for _, part := range schema.get("allOf").items() {
		code := part.get("properties").get("code")
		if one := code.text("const"); one != "" {
			return []string{one}
		}
		if list := code.get("enum").words(); len(list) > 0 && part.name == "" {
			return list
		}
	}
	return nil
}

func newSchema(s node) schema {
	out := schema{Name: s.name, About: markdown(s.text("description")), Values: s.get("enum").words(), Fields: fieldsOf(s, 1)}
	for _, one := range s.get("oneOf").items() {
		if one.name != "" {
			out.OneOf = append(out.OneOf, typeOf(one))
		}
	}
	return out
}
