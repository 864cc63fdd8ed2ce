package contract_test

import (
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// unstorable is a text that OpenStack's tables cannot hold.
const unstorable = "x🚀"

// keptHere are the texts that may have any character, and why.
var keptHere = map[string]string{
	"actOnServer command[0]":              inBase64,
	"actOnServer env.x":                   inBase64,
	"actOnServer join_token":              inBase64,
	"actOnServer registry.password":       inBase64,
	"actOnServer registry.username":       inBase64,
	"changeConnection limits.flavors[0]":  compared,
	"changeConnection limits.regions[0]":  compared,
	"changeConnection name":               inPostgres,
	"changeNode network_zone":             inPostgres,
	"changeNode region_zone":              inPostgres,
	"createConnection limits.flavors[0]":  compared,
	"createConnection limits.regions[0]":  compared,
	"createConnection name":               inPostgres,
	"createConnection region":             compared,
	"createConnection secret":             hashed,
	"createFlavor description":            inPostgres,
	"createFlavor spec.data.x":            inBase64,
	"declineConnectionRequest reason":     inPostgres,
	"grantConnectionRequest name":         inPostgres,
	"launch instances[0].user_data":       inBase64,
	"launch lease.name":                   inPostgres,
	"launch user_data":                    inBase64,
	"putFlavor description":               inPostgres,
	"putFlavor spec.data.x":               inBase64,
	"putManaged spec.data.x":              inBase64,
	"putManaged spec.payload":             inBase64,
	"putManaged spec.user_data":           inBase64,
	"reportNode reason":                   inPostgres,
	"requestConnection limits.flavors[0]": compared,
	"requestConnection limits.regions[0]": compared,
	"requestConnection name":              inPostgres,
	"requestConnection why":               inPostgres,
	"signIn password":                     hashed,
}

const (
	inPostgres = "OpenStack does not get it"
	inBase64   = "OpenStack gets it in base64, or encrypted"
	compared   = "it is compared with what OpenStack has"
	hashed     = "Keystone hashes it"
)

// specs are specs of each kind, by its schema.
var specs = map[string]struct {
	kind domain.Kind
	spec map[string]any
}{
	"MachineSpec": {domain.KindMachine, map[string]any{
		"flavor": "m1.tiny", "image": "cirros", "networks": []any{"private"},
	}},
	"DeploymentSpec": {domain.KindDeployment, map[string]any{
		"flavor": "m1.tiny", "image": "cirros", "networks": []any{"private"}, "count": 1,
	}},
	"PodSpec": {domain.KindPod, map[string]any{
		"flavor": "m1.tiny", "image": "cirros", "networks": []any{"private"}, "containers": []any{oneContainer()},
	}},
	"PodDeploymentSpec": {domain.KindPodDeployment, map[string]any{
		"flavor": "m1.tiny", "image": "cirros", "networks": []any{"private"}, "containers": []any{oneContainer()}, "count": 1,
	}},
	"VolumeSpec": {domain.KindVolume, map[string]any{"size_gb": 1}},
	"ImageSpec": {domain.KindImage, map[string]any{
		"disk_format": "raw", "source_url": "https://images.example.com/x",
	}},
	"BalancerSpec": {domain.KindBalancer, map[string]any{"network": "private", "listeners": []any{map[string]any{
		"protocol": "TCP", "port": 80, "member_port": 80, "addresses": []any{"10.0.0.1"},
	}}}},
	"SecretSpec":    {domain.KindSecret, map[string]any{}},
	"ConfigmapSpec": {domain.KindConfigmap, map[string]any{"data": map[string]any{"a": "b"}}},
}

// TestTextsAreStorable: every operation refuses a text that OpenStack's tables cannot hold, and names its field, unless
// OpenStack does not store the text. It refuses any text with a NUL, and one that is too long.
func TestTextsAreStorable(t *testing.T) {
	t.Parallel()
	m := textMatrix{matrix: newMatrix(t, everyFunction...)}
	m.cloud = smallCloud()
	kept := maps.Clone(keptHere)
	for name, o := range m.operations {
		if o.RequestBody == nil || isEvent(o) || o.RequestBody.Value.Content.Get("application/json") == nil {
			continue
		}
		for _, text := range o.texts(t) {
			at, example := name+" "+text.name, m.exampleOf(t, o, text)
			if !m.refuses(t, o, example, text, "x\x00") {
				t.Errorf("%s may have a NUL", at)
			}
			if long := text.tooLong(); !m.refuses(t, o, example, text, long) {
				t.Errorf("%s may have %d characters", at, len(long))
			}
			odd := unstorable
			if text.name == "spec.user_data" {
				odd = "#!" + odd // containers take a form that cloud-init knows
			}
			if isKept := keptHere[at] != ""; m.refuses(t, o, example, text, odd) == isKept {
				t.Errorf("%s may have a character of four bytes: %t, want %t", at, !isKept, isKept)
			}
			delete(kept, at)
		}
	}
	for at := range kept {
		t.Errorf("%s is no text of a body", at)
	}
}

func oneContainer() map[string]any {
	return map[string]any{
		"name": "web", "image": "web:1", "mounts": []any{map[string]any{"source": "/a", "target": "/b"}},
	}
}

// freeText is a field of a body that takes a text.
type freeText struct {
	field
	name string
	kind domain.Kind    // whose specs have the field; "" = every body may have it
	spec map[string]any // one of the kind
}

// texts are the texts of an operation's body that have no form of their own.
func (o operation) texts(t *testing.T) (found []freeText) {
	t.Helper()
	isText := func(s *openapi3.Schema) bool {
		return s.Type.Includes("string") && s.Enum == nil && s.Format == "" &&
			(s.Pattern == "" || regexp.MustCompile(s.Pattern).MatchString(unstorable))
	}
	body := o.RequestBody.Value.Content.Get("application/json").Schema.Value
	for name, f := range fieldsOf(body, isText) {
		if !strings.HasPrefix(name, "spec.") {
			found = append(found, freeText{field: f, name: name})
		}
	}
	if spec := body.Properties["spec"]; spec != nil {
		for _, one := range spec.Value.AnyOf {
			of, isKnown := specs[path.Base(one.Ref)]
			if !isKnown && one.Ref != "" {
				t.Errorf("%s is the spec of no kind", one.Ref)
			}
			for name, f := range fieldsOf(one.Value, isText) {
				f.set = inObject("spec", f.set)
				found = append(found, freeText{field: f, name: "spec." + name, kind: of.kind, spec: of.spec})
			}
		}
	}
	slices.SortFunc(found, func(a, b freeText) int { return strings.Compare(a.name, b.name) })
	return found
}

func (x freeText) tooLong() string {
	if most := x.schema.MaxLength; most != nil {
		return strings.Repeat("x", int(*most)+1)
	}
	isOfContainer := strings.HasPrefix(x.name, "spec.containers[0].")
	if strings.HasSuffix(x.name, "user_data_base64") || x.name == "spec.data.x" || isOfContainer {
		return strings.Repeat("x", 100_000)
	}
	return strings.Repeat("x", 2500)
}

// textMatrix is a matrix with the example whose objects are stored.
type textMatrix struct {
	*matrix
	ready   string // its operation and name
	variant variant
}

// exampleOf is the first example of an operation that takes another text in this one's place. A text that no example
// takes has a form, and any other is refused.
func (m *textMatrix) exampleOf(t *testing.T, o operation, x freeText) string {
	t.Helper()
	examples := o.exampleNames()
	if o.OperationID == "launch" { // a dry run through a connection waits for run-connections
		examples = slices.DeleteFunc(examples, func(e string) bool { return e == "delegated" })
	}
	for _, example := range examples {
		if !m.refuses(t, o, example, x, "x") {
			return example
		}
	}
	return examples[0]
}

// refuses sends an example with a text, and reports whether the answer is that its field, or one around it, is invalid.
func (m *textMatrix) refuses(t *testing.T, o operation, example string, x freeText, value string) bool {
	t.Helper()
	if m.ready != o.OperationID+" "+example {
		m.variant, _ = m.prepare(t, o, example)
		m.ready = o.OperationID + " " + example
	}
	a := m.variant
	for _, p := range o.params {
		if p.Name == "dry_run" {
			a.query = append(slices.Clone(a.query), "dry_run=true")
		}
	}
	if x.kind != "" {
		a.path = strings.ReplaceAll(a.path, "{kind}", string(x.kind))
		a.set = maps.Clone(a.set)
		if a.set == nil {
			a.set = map[string]any{}
		}
		a.set["spec"], a.set["flavor"], a.set["schedule"] = x.spec, nil, nil
		if o.OperationID == "createFlavor" || o.OperationID == "putFlavor" {
			a.set["kind"] = x.kind
		} else {
			a.header = []string{"If-Match", ""}
		}
	}
	body := changed(t, o.body(t, a), x.set, value)
	answer := m.client.As(everyRole.token()).Do(t, o.method, o.target(t, a), body, o.header(a, body)...)
	if answer.Status < http.StatusBadRequest { // it has changed the objects
		m.ready = ""
	}
	if answer.Status != http.StatusBadRequest && answer.Status != http.StatusOK {
		return false
	}
	var problem struct{ Errors, Problems []struct{ Field string } } // a dry run has problems
	answer.JSON(t, &problem)
	return slices.ContainsFunc(slices.Concat(problem.Errors, problem.Problems), func(e struct{ Field string }) bool {
		rest, isAround := strings.CutPrefix(x.name, e.Field)
		return isAround && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}
