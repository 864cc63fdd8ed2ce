package contract_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// operation is one method of one path of openapi.yaml.
type operation struct {
	*openapi3.Operation
	method, path string
	params       []*openapi3.Parameter // the path's too
}

// examples sends what openapi.yaml gives as examples, and keeps what was answered.
type examples struct {
	operations map[string]operation

	mu   sync.Mutex
	sent map[string]string // where, by operation and status
}

func newExamples(t *testing.T) *examples {
	t.Helper()
	return &examples{operations: operations(document(t).Paths.Map()), sent: map[string]string{}}
}

// operations are those of paths, or of events, by their ids.
func operations(items map[string]*openapi3.PathItem) map[string]operation {
	list := map[string]operation{}
	for path, item := range items {
		for method, op := range item.Operations() {
			o := operation{Operation: op, method: method, path: path}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				o.params = append(o.params, p.Value)
			}
			list[op.OperationID] = o
		}
	}
	return list
}

func document(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(read(t, "functions", "openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// variant is how a request differs from the document's example of it. The zero variant is the example.
type variant struct {
	client  *testkit.Client
	example string            // the name of the body's example; "" = the first by name
	real    *strings.Replacer // puts what there is in the place of what the examples name
	set     map[string]any    // fields of the body; nil takes one away
	// parameters that are sent, with the values of their examples, or their own: "marker", "limit=1"
	query  []string
	method string
	path   string
	body   string
	header []string // instead of the example's
	where  string   // for the table
}

// send sends an operation's example, changed as given, and holds the answer against the document. The answer must have
// the status.
func (e *examples) send(t *testing.T, id string, status int, a variant) testkit.Answer {
	t.Helper()
	o, known := e.operations[id]
	if !known {
		t.Fatalf("openapi.yaml has no operation %s", id)
	}
	if a.real == nil {
		a.real = strings.NewReplacer()
	}
	body := a.body
	if body == "" {
		body = o.body(t, a)
	}
	answer := a.client.Do(t, cmp.Or(a.method, o.method), o.target(t, a), body, o.header(a, body)...)
	if answer.Status != status {
		t.Errorf("%s: %s got %d %s, want %d", a.where, id, answer.Status, answer.Body, status)
		return answer
	}
	if status == http.StatusOK && o.documents(http.StatusNotModified) != "" {
		e.again(t, o, a, answer)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if documented := o.documents(status); documented != "" && e.sent[id+" "+documented] == "" {
		e.sent[id+" "+documented] = a.where
	}
	return answer
}

// again sends a read once more, with the ETag of its answer. What has changed meanwhile is sent whole.
func (e *examples) again(t *testing.T, o operation, a variant, first testkit.Answer) {
	t.Helper()
	tag := first.Header.Get("ETag")
	if tag == "" {
		if first.Header.Get("Content-Type") == "application/json" {
			t.Errorf("%s: %s has no ETag", a.where, o.OperationID)
		}
		return
	}
	header := append(o.header(a, ""), "If-None-Match", tag)
	answer := a.client.Do(t, cmp.Or(a.method, o.method), o.target(t, a), "", header...)
	switch {
	case answer.Status == http.StatusNotModified && len(answer.Body) == 0 && answer.Header.Get("ETag") == tag:
		e.mu.Lock()
		defer e.mu.Unlock()
		e.sent[o.OperationID+" 304"] = a.where
	case answer.Status != http.StatusOK || answer.Header.Get("ETag") == tag:
		t.Errorf("%s: %s again, with %s: got %d %v %s", a.where, o.OperationID, tag, answer.Status, answer.Header,
			answer.Body)
	}
}

// documents is under which key the operation describes a status: alone, or by a range; "" when it does not.
func (o operation) documents(status int) string {
	for _, key := range []string{strconv.Itoa(status), fmt.Sprintf("%dXX", status/100)} {
		if o.Responses.Value(key) != nil {
			return key
		}
	}
	return ""
}

func (o operation) body(t *testing.T, a variant) string {
	t.Helper()
	if o.RequestBody == nil || o.RequestBody.Value.Content.Get("application/json") == nil {
		return ""
	}
	media := o.RequestBody.Value.Content.Get("application/json")
	value := media.Example
	if len(media.Examples) > 0 {
		name := a.example
		if name == "" {
			name = slices.Sorted(maps.Keys(media.Examples))[0]
		}
		if media.Examples[name] == nil {
			t.Fatalf("%s has no example %q", o.OperationID, name)
		}
		value = media.Examples[name].Value.Value
	}
	if fields, ok := value.(map[string]any); ok && len(a.set) > 0 {
		fields = maps.Clone(fields)
		maps.Copy(fields, a.set)
		maps.DeleteFunc(fields, func(_ string, v any) bool { return v == nil })
		value = fields
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return a.real.Replace(string(text))
}

func (o operation) target(t *testing.T, a variant) string {
	t.Helper()
	path, query := cmp.Or(a.path, o.path), url.Values{}
	for _, p := range o.params {
		if p.In == "path" {
			path = strings.ReplaceAll(path, "{"+p.Name+"}", a.real.Replace(text(p.Example)))
		}
		if p.In == "query" && slices.Contains(a.query, p.Name) {
			query.Set(p.Name, a.real.Replace(text(p.Example)))
		}
	}
	for _, q := range a.query {
		if name, value, given := strings.Cut(q, "="); given {
			query.Set(name, value)
		} else if !query.Has(name) {
			t.Fatalf("%s has no example of the parameter %s", o.OperationID, name)
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// text is an example of a parameter, as it is sent: a list with commas.
func text(example any) string {
	list, ok := example.([]any)
	if !ok {
		return fmt.Sprint(example)
	}
	parts := make([]string, len(list))
	for i, part := range list {
		parts[i] = fmt.Sprint(part)
	}
	return strings.Join(parts, ",")
}

// header is what the document says that a request has, but for the token, which the client sends.
func (o operation) header(a variant, body string) []string {
	given := http.Header{}
	if body != "" {
		given.Set("Content-Type", "application/json")
	}
	for _, p := range o.params {
		isOwn := p.Name == "If-None-Match" || p.Name == "Idempotency-Key" // what each test gives
		if p.In == "header" && !isOwn && p.Example != nil {
			given.Set(p.Name, text(p.Example))
		}
	}
	if strings.HasPrefix(o.path, "/events/") {
		given.Set("Ce-Cloudfnkey", a.client.Key)
	}
	for i := 0; i+1 < len(a.header); i += 2 {
		given.Set(a.header[i], a.header[i+1])
	}
	var pairs []string
	for name, values := range given {
		if values[0] != "" {
			pairs = append(pairs, name, values[0])
		}
	}
	return pairs
}

// TestDocumentedExamples holds every example of openapi.yaml against its schema. Every answer and every body has one.
func TestDocumentedExamples(t *testing.T) {
	t.Parallel()
	doc := document(t)
	check := func(where string, schema *openapi3.SchemaRef, value any) {
		if schema == nil { // a picture or a page
			return
		}
		if err := doc.ValidateSchemaJSON(schema.Value, value); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	content := func(where string, content openapi3.Content) {
		for kind, media := range content {
			if media.Example == nil && len(media.Examples) == 0 {
				t.Errorf("%s has no example of %s", where, kind)
			}
			if media.Example != nil {
				check(where, media.Schema, media.Example)
			}
			for name, example := range media.Examples {
				check(where+" "+name, media.Schema, example.Value.Value)
			}
		}
	}
	all := operations(doc.Paths.Map())
	maps.Copy(all, operations(doc.Webhooks))
	for id, o := range all {
		for _, p := range o.params {
			if p.Example != nil {
				check(id+" "+p.Name, p.Schema, p.Example)
			} else if p.Schema.Value.Default == nil {
				t.Errorf("%s has no example of %s", id, p.Name)
			}
		}
		if o.RequestBody != nil {
			content(id, o.RequestBody.Value.Content)
		}
		for status, response := range o.Responses.Map() {
			content(id+" "+status, response.Value.Content)
			for name, header := range response.Value.Headers {
				if header.Value.Example != nil {
					check(id+" "+status+" "+name, header.Value.Schema, header.Value.Example)
				}
			}
		}
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Error(err)
	}
}
