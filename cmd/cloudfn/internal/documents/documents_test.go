package documents_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

const web = `# servers
kind: VirtualMachineDeployment
name: web
labels: {app: web, since: "2026"}
schedule:
  zone: nova
spec: &spec
  count: 5
  flavor: m1.tiny
  networks: [private]
  metadata: {released: 2026-01-02, on: yes, 8080: "no"}
---
---
kind: Volume
name: data
spec: {size_gb: 10}
`

// TestRead reads several documents of a file, with numbers as numbers and texts as texts.
func TestRead(t *testing.T) {
	t.Parallel()
	all, err := documents.Decode([]byte(web), "web.yaml", "")
	if err != nil || len(all) != 2 {
		t.Fatalf("%d documents, %v", len(all), err)
	}
	deployment := all[0]
	if deployment.ID() != "VirtualMachineDeployment/web" || deployment.Source.String() != "web.yaml: document 1" ||
		all[1].Source.String() != "web.yaml: document 3" {
		t.Errorf("they are %s in %s and %s", deployment.ID(), deployment.Source, all[1].Source)
	}
	if diff := cmp.Diff(map[string]string{"app": "web", "since": "2026"}, deployment.Labels()); diff != "" {
		t.Error(diff)
	}
	text, err := json.Marshal(deployment.Request())
	const want = `{"labels":{"app":"web","since":"2026"},"schedule":{"zone":"nova"},"spec":{"count":5,` +
		`"flavor":"m1.tiny","metadata":{"8080":"no","on":"yes","released":"2026-01-02"},"networks":["private"]}}`
	if string(text) != want || err != nil {
		t.Errorf("the request is %s, %v\nwant           %s", text, err, want)
	}
}

// TestErrors: each names the file, the document and the field.
func TestErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"kind: Volume\nname: [a]": "a.yaml: document 1: name: must be a text",
		"kind: Volume":            "a.yaml: document 1: name is missing",
		"name: x":                 "a.yaml: document 1: kind is missing: it is one of ResourceFlavor, Secret,",
		"kind: Volumes\nname: x":  `a.yaml: document 1: kind: unknown kind "Volumes"; expected one of ResourceFlavor,`,
		"kind: CI\nname: x":       "a.yaml: document 1: kind: CI is not supported: OpenStack has no service for it",
		"kind: Volume\nname: x\nlables: {}": `a.yaml: document 1: lables: unknown field of a Volume; did you mean ` +
			`"labels"?`,
		"kind: Volume\nname: x\nshade: {}": "a.yaml: document 1: shade: unknown field of a Volume; expected one of " +
			"kind, name, flavor, labels,",
		"kind: ResourceFlavor\nname: x\nlabels: {}": "a.yaml: document 1: labels: unknown field of a ResourceFlavor",
		"kind: Volume\nname: x\nlabels: {a: 1}":     "a.yaml: document 1: labels.a: must be a text: put 1 in quotes",
		"kind: Volume\nname: x\nlabels: [a]":        "a.yaml: document 1: labels: must be a mapping of texts",
		"kind: Volume\nname: x\nspec: 3":            "a.yaml: document 1: spec: must be a mapping of fields",
		"- {kind: Volume, name: x}\n- kind: Volume": "a.yaml: document 1, entry 2: name is missing",
		"kind: Secret\nname: x\nspec: {payload_file: none}": "a.yaml: document 1: spec.payload_file: open none: no " +
			"such file",
		"kind: Secret\nname: x\nspec: {payload_file: none, payload: a}": "a.yaml: document 1: spec.payload_file: " +
			"give either it or spec.payload",
		"kind: Secret\nname: x\nspec: {payload_file: 3}": "spec.payload_file: must be the name of a file",
		"kind: Volume\nname: x\nspec: &a {b: *a}":        "a.yaml: document 1: anchor 'a' value contains itself",
	} {
		_, err := documents.Decode([]byte(text), "a.yaml", "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v\nwant %s", text, err, want)
			continue
		}
		if failure, ok := errors.AsType[*exit.Error](err); !ok || failure.Code != exit.Usage {
			t.Errorf("%q has no exit code of wrong input", text)
		}
	}
}

// TestPositions: what does not parse is at a line and a column, also in the first line.
func TestPositions(t *testing.T) {
	t.Parallel()
	const volume = "kind: Volume\nname: x\n---\n"
	for text, want := range map[string]string{
		"three":                      "document 1: line 1, column 1: a document must be a mapping",
		"kind: Volume: x":            "document 1: line 1, column 13: mapping values are not allowed in this context",
		"a: b\nname: x\nname: y":     `document 1: line 3, column 1: the key "name" is in line 2 already`,
		"a: b\nc: {d: 1,\n  d: 2}":   `document 1: line 3, column 3: the key "d" is in line 2 already`,
		volume + "c: [":              "document 2: line 4, column 4: did not find expected node content",
		"a: b\nspec:\n\tc: 1\nd: e":  "document 1: line 3, column 1: found character that cannot start any token",
		"a: b\nname: \"x":            "document 1: line 2, column 7: found unexpected end of stream",
		"a: \"é\", b\nc: {d: \"é\"}": "document 1: line 1, column 7: did not find expected key",
		"a: {c: \"é\", b: *c}":       "document 1: line 1, column 17: unknown anchor 'c' referenced",
		volume + "c: d\n  e: f":      "document 2: line 5, column 4: mapping values are not allowed in this context",
	} {
		_, err := documents.Decode([]byte(text), "a.yaml", "")
		if err == nil || !strings.HasPrefix(err.Error(), "a.yaml: "+want) {
			t.Errorf("%q gives %v\nwant a.yaml: %s", text, err, want)
		}
	}
}

// TestFolder reads the files of a folder by their names, and the files that they name.
func TestFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"20.yml":      "kind: Secret\nname: key\nspec: {payload_file: key.txt}",
		"10.yaml":     "kind: Image\nname: tiny\nspec: {content_file: key.txt, disk_format: raw}",
		"30.json":     `{"kind": "ResourceFlavor", "name": "small", "for_kind": "Volume", "spec": {"size_gb": 1}}`,
		"key.txt":     "secret\n",
		".hidden.yml": "nonsense",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := documents.Read([]string{dir, "-"}, strings.NewReader("kind: Volume\nname: data"))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, d := range all {
		ids = append(ids, d.ID())
	}
	if diff := cmp.Diff([]string{"Image/tiny", "Secret/key", "ResourceFlavor/small", "Volume/data"}, ids); diff != "" {
		t.Error(diff)
	}
	if got := all[1].Spec()["payload"]; got != "secret\n" || all[0].Spec()["content"] != "c2VjcmV0Cg==" {
		t.Errorf("the files are %v and %v", all[0].Spec(), all[1].Spec())
	}
	if request := all[2].Request(); request["kind"] != "Volume" || !all[2].IsFlavor() {
		t.Errorf("the flavor is %v", request)
	}
	documents.Sort(all)
	if all[0].Kind != documents.FlavorKind || all[1].Kind != "Secret" || all[3].Kind != "Volume" {
		t.Errorf("the order is %s, %s, %s, %s", all[0].ID(), all[1].ID(), all[2].ID(), all[3].ID())
	}
	if _, err := documents.Read([]string{dir, dir}, nil); err == nil ||
		!strings.Contains(err.Error(), "10.yaml: document 1: name: Image/tiny is declared in "+dir) {
		t.Errorf("twice gives %v", err)
	}
	if _, err := documents.Read([]string{t.TempDir()}, nil); err == nil ||
		!strings.Contains(err.Error(), "there is no document in ") {
		t.Errorf("an empty folder gives %v", err)
	}
}

// TestWrite writes what the API answers as a document, without what is not declared.
func TestWrite(t *testing.T) {
	t.Parallel()
	const answer = `{"id": "7f9c24e8-3b12-4fef-91e0-e3d5e6f7a8b9", "kind": "Volume", "name": "data", "labels": {},
		"schedule": {"zone": "nova"}, "repair": "manual", "max_revisions": 10, "revision": 3, "status": "ready",
		"spec": {"size_gb": 1000000, "description": "yes", "metadata": {"a": "1", "text": "two\nlines\n"}}}`
	d, err := documents.New("Volume", json.RawMessage(answer))
	if err != nil {
		t.Fatal(err)
	}
	const flavor = `{"name": "small", "kind": "Volume", "provider": "cinder", "description": "", "version": 3,
		"spec": {"size_gb": 1}}`
	f, err := documents.New(documents.FlavorKind, json.RawMessage(flavor))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := documents.Write(&text, []documents.Document{d, f}); err != nil {
		t.Fatal(err)
	}
	const want = `kind: Volume
name: data
schedule:
  zone: nova
repair: manual
max_revisions: 10
spec:
  description: "yes"
  metadata:
    a: "1"
    text: |
      two
      lines
  size_gb: 1000000
---
kind: ResourceFlavor
name: small
for_kind: Volume
provider: cinder
spec:
  size_gb: 1
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}

// TestWriteForTerminals escapes what could command a terminal, and reads it again as it was.
func TestWriteForTerminals(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\u202e\tgnp"
	var text bytes.Buffer
	d := documents.Document{Kind: "Configmap", Name: "x", Fields: map[string]any{
		"spec": map[string]any{"data": map[string]any{"file": evil}},
	}}
	if err := documents.Write(&text, []documents.Document{d, d}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(text.String(), "\x1b\u202e") {
		t.Errorf("it is %q", text.String())
	}
	all, err := documents.Decode(text.Bytes(), "x", "")
	if err != nil || len(all) != 2 || all[1].Spec()["data"].(map[string]any)["file"] != evil {
		t.Errorf("it is read as %v, %v", all, err)
	}
}

// TestWhatIsWrittenIsRead holds it for any texts and numbers.
func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := map[string]any{}
		for key, value := range rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "texts") {
			spec[key] = strings.ToValidUTF8(value, "?")
		}
		spec["n"] = rapid.Int64().Draw(t, "number")
		spec["is"] = rapid.Bool().Draw(t, "bool")
		spec["list"] = rapid.SliceOf(rapid.String()).Draw(t, "list")
		d := documents.Document{Kind: "Volume", Name: "x", Fields: map[string]any{"spec": spec}}
		var text bytes.Buffer
		if err := documents.Write(&text, slices.Repeat([]documents.Document{d}, 2)); err != nil {
			t.Fatal(err)
		}
		all, err := documents.Decode(text.Bytes(), "x", "")
		if err != nil || len(all) != 2 {
			t.Fatalf("%v of\n%s", err, text.String())
		}
		want, _ := json.Marshal(d)
		if got, _ := json.Marshal(all[1]); !bytes.Equal(got, want) {
			t.Errorf("%s is read as\n%s\nfrom\n%s", want, got, text.String())
		}
	})
}

// TestValue reads a value that is given alone.
func TestValue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		"8": 8, "web": "web", "": "", "2026-01-02": "2026-01-02", "true": true, "[a, 1]": []any{"a", 1},
		"{a: b}": map[string]any{"a": "b"},
	} {
		got, err := documents.Value(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %s, %v", text, diff, err)
		}
	}
	if _, err := documents.Value("["); err == nil {
		t.Error("[ is a value")
	}
}

// TestSetFile takes bytes for the content of an image and for user_data.
func TestSetFile(t *testing.T) {
	t.Parallel()
	const bytes = "\x1f\x8b\xff"
	for field, want := range map[string]map[string]any{
		"content": {"content": "H4v/"}, "payload": {}, "user_data": {"user_data_base64": "H4v/"},
	} {
		got := map[string]any{}
		err := documents.SetFile(got, field, []byte(bytes))
		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (field != "payload") {
			t.Errorf("%s: %s %v", field, diff, err)
		}
	}
	got := map[string]any{}
	if err := documents.SetFile(got, "user_data", []byte("é\n")); got["user_data"] != "é\n" || err != nil {
		t.Errorf("text: got %q %v", got, err)
	}
}
