package contract_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// The authorization matrix: every operation of openapi.yaml, with every kind of token and role, on what is the
// project's own, another project's, and absent. OpenStack is a fake that answers 503, so no policy of a cloud decides.

// reads are operations that are no GET, and change nothing.
var reads = []string{"checkConnection"}

// unscopedReads take any token with a scope.
var unscopedReads = []string{"suggestAccessRules", "getStats", "listRequests"}

// ofCloud are operations on what belongs to no project: Nova's policy decides.
func ofCloud(o operation) bool {
	return strings.HasPrefix(o.path, "/v1/nodes") || o.OperationID == "listAllocations" ||
		o.OperationID == "releaseLease"
}

func isWrite(o operation) bool {
	return o.method != http.MethodGet && !slices.Contains(reads, o.OperationID)
}

// verdict is what the edge decides about a caller, before the object matters: a status, or 0 = the caller passes.
func (c caller) verdict(o operation) int {
	switch {
	case isEvent(o):
		return http.StatusForbidden // a token is no event key
	case !withToken(o):
		return 0 // judged by judgePublic
	case c.scope == noToken || c.scope == unknown || c.scope == unscoped:
		return http.StatusUnauthorized
	case c.scope == denied:
		return http.StatusForbidden
	case c.scope == ofProject:
		if isWrite(o) && !c.mayWrite() {
			return http.StatusForbidden
		}
	case !slices.Contains(unscopedReads, o.OperationID):
		return http.StatusForbidden
	case o.OperationID != "suggestAccessRules" && !c.has("reader", "member", "manager", "admin"):
		return http.StatusForbidden
	}
	return 0
}

// TestAuthorizationMatrix sends each operation with each caller and object.
func TestAuthorizationMatrix(t *testing.T) {
	t.Parallel()
	m := newMatrix(t, everyFunction...)
	t.Run("refused", m.refused)
	t.Run("public", m.public)
	t.Run("others", m.others)
	t.Run("own", m.own)
	t.Run("zero ids", m.zeroIDs)
	t.Run("filters", m.unknownFilters)
	t.Logf("%d requests", m.sent.Load())
}

// refused: who may not, gets the same answer for each object; nothing is stored, and OpenStack is not called.
func (m *matrix) refused(t *testing.T) {
	before := m.rows(t, "")
	m.calls.Store(0)
	m.each(func(o operation, c caller) {
		status := c.verdict(o)
		if status == 0 {
			return
		}
		var texts []string
		for whose, names := range map[string]objects{"own": m.mine, "another's": m.theirs, "absent": m.absent} {
			a := m.send(t, o, c, names)
			if a.Status != status || status == http.StatusUnauthorized && a.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s by %s, %s: got %d %s, want %d", o.OperationID, c.name, whose, a.Status, a.Body, status)
			}
			texts = append(texts, names.unnamed(a))
		}
		if slices.Sort(texts); len(slices.Compact(texts)) != 1 {
			t.Errorf("%s by %s: the answers tell objects apart: %s", o.OperationID, c.name, texts)
		}
	})
	for table, rows := range m.rows(t, "") {
		if rows != before[table] {
			t.Errorf("requests that are refused have changed %s", table)
		}
	}
	if n := m.calls.Load(); n != 0 {
		t.Errorf("requests that are refused have called OpenStack %d times", n)
	}
}

// public operations have no Keystone token: each caller gets the same as one without.
func (m *matrix) public(t *testing.T) {
	m.each(func(o operation, c caller) {
		if withToken(o) || isEvent(o) {
			return
		}
		a, anonymous := m.send(t, o, c, m.mine), m.send(t, o, callers[0], m.mine)
		if a.Status != anonymous.Status {
			t.Errorf("%s by %s: got %d %s, and %d without a token", o.OperationID, c.name, a.Status, a.Body,
				anonymous.Status)
		}
		if isOpen := slices.Contains(open, o.OperationID); isOpen == (a.Status >= 400) && o.OperationID != "signIn" {
			t.Errorf("%s by %s: got %d %s; it is open to all: %t", o.OperationID, c.name, a.Status, a.Body, isOpen)
		}
	})
}

// open are the public operations that need no secret of their own.
var open = []string{
	"openConsole", "getConsole", "getConsoleFile", "getStatus", "getDescription", "getReference", "getReferenceFile",
	"getHealth", "signOut",
}

// others: what is another project's answers like what is absent, and stays as it is.
func (m *matrix) others(t *testing.T) {
	const where = " where project_id = '" + otherProject + "'"
	before := m.rows(t, where)
	m.each(func(o operation, c caller) {
		if !withToken(o) || c.verdict(o) != 0 || ofCloud(o) || c.scope != ofProject || !m.isNamed(t, o) {
			return
		}
		theirs, none := m.send(t, o, c, m.theirs), m.send(t, o, c, m.absent)
		if theirs.Status != none.Status || m.theirs.unnamed(theirs) != m.absent.unnamed(none) {
			t.Errorf("%s by %s: another's gets %d %s, an absent one %d %s", o.OperationID, c.name, theirs.Status,
				theirs.Body, none.Status, none.Body)
		}
		if theirs.Status < 400 && !slices.Contains(makesOwn, o.OperationID) {
			t.Errorf("%s by %s: another's gets %d %s", o.OperationID, c.name, theirs.Status, theirs.Body)
		}
	})
	for table, rows := range m.rows(t, where) {
		if rows != before[table] {
			t.Errorf("another project's rows of %s were changed", table)
		}
	}
}

// makesOwn are operations whose names are the project's own to choose.
var makesOwn = []string{"putFlavor", "putManaged"}

// own: who may, is not refused, and finds what is the project's.
func (m *matrix) own(t *testing.T) {
	m.each(func(o operation, c caller) {
		if !withToken(o) || c.verdict(o) != 0 {
			return
		}
		names := m.mine
		if isWrite(o) {
			names = m.insert(t, ownProject)
		}
		a := m.send(t, o, c, names)
		isPolicy := ofCloud(o) && !c.has("admin") // the fake cloud says so, as a real one does
		if through := strings.Contains(o.target(t, m.variant(o, names)), "connection_id"); through && !c.mayWrite() {
			if a.Status != http.StatusNotFound {
				t.Errorf("%s by %s through a connection: got %d %s", o.OperationID, c.name, a.Status, a.Body)
			}
			return
		}
		isRefused := a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden && !isPolicy
		if isRefused || a.Status == http.StatusNotFound || a.Status == http.StatusInternalServerError ||
			a.Status == http.StatusBadRequest {
			t.Errorf("%s by %s: got %d %s", o.OperationID, c.name, a.Status, a.Body)
		}
	})
}

// each calls do for each operation and caller, several concurrently.
func (m *matrix) each(do func(operation, caller)) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, 8)
	for _, o := range m.operations {
		for _, c := range callers {
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				do(o, c)
			})
		}
	}
}

// isNamed reports whether the operation's request names an object.
func (m *matrix) isNamed(t *testing.T, o operation) bool {
	t.Helper()
	a := m.variant(o, m.mine)
	b := m.variant(o, m.absent)
	return o.target(t, a) != o.target(t, b) || o.body(t, a) != o.body(t, b)
}

func (m *matrix) variant(o operation, names objects) variant {
	a := variant{client: m.client, where: "the matrix", real: names.replacer(o)}
	if change, ok := exceptions[o.OperationID]; ok {
		change(&a)
	}
	if change, ok := matrixExamples[o.OperationID]; ok {
		change(&a)
	}
	if a.path = names.path(o); isEvent(o) {
		a.header = []string{"Ce-Cloudfnkey", "another"}
	}
	return a
}

func (m *matrix) send(t *testing.T, o operation, c caller, names objects) testkit.Answer {
	t.Helper()
	m.sent.Add(1)
	a := m.variant(o, names)
	body := o.body(t, a)
	return m.client.As(c.token()).Do(t, o.method, o.target(t, a), body, o.header(a, body)...)
}

// zeroIDs: no operation takes the zero UUID for an absent one. A launch would go elsewhere than its caller requested.
func (m *matrix) zeroIDs(t *testing.T) {
	n := 0
	for _, o := range m.operations {
		if !withToken(o) || isEvent(o) {
			continue
		}
		example := m.variant(o, m.mine)
		refuses := func(field string, a variant, body string) {
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

// unknownFilters: a list with a filter for a status, or another of a few words, that is unknown says so.
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
			a := m.variant(o, m.mine)
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
