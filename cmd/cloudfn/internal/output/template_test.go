package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

type sized struct {
	Name  string  `json:"name"`
	Size  int64   `json:"size"`
	Share float64 `json:"share"`
	Tags  []string
}

// TestTemplates prints what kubectl's jsonpath and custom-columns choose of the JSON.
func TestTemplates(t *testing.T) {
	t.Parallel()
	var items []api.Item[sized]
	for _, text := range []string{
		`{"name": "web", "size": 10000000, "share": 0.5, "tags": ["a", "b"]}`,
		`{"name": "\u001b[31mdb", "size": 7, "share": 1, "tags": [], "more": {"deep": "x"}}`,
	} {
		item := api.Item[sized]{Raw: json.RawMessage(text)}
		if err := json.Unmarshal(item.Raw, &item.Value); err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	for format, want := range map[string]string{
		`jsonpath={[*].name}`: "web \uFFFD[31mdb",
		`jsonpath=[0].name`:   "web",
		`jsonpath={range [*]}{.name}{"\t"}{.size}{"\n"}{end}`: "web\t10000000\n\uFFFD[31mdb\t7\n",
		`jsonpath={[?(@.size>100)].name}`:                     "web",
		`jsonpath={[0].tags}`:                                 `["a","b"]`,
		`jsonpath={[*].absent}`:                               "",
		`custom-columns=NAME:.name,SIZE:.size,DEEP:{.more.deep}`: "NAME     SIZE      DEEP\n" +
			"web      10000000  -\n\uFFFD[31mdb  7         x\n",
		`custom-columns=FIRST:.tags[0],NULL:.none`:  "FIRST  NULL\na      -\n-      -\n",
		`custom-columns=SHARE:.share,TAGS:.tags[*]`: "SHARE  TAGS\n0.5    a b\n1      -\n",
	} {
		var out bytes.Buffer
		p := Printer{Out: &out}
		if err := p.SetFormat(format); err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		if err := List(&p, items, Table[sized]{}); err != nil || out.String() != want {
			t.Errorf("%s: got %q %v, want %q", format, out.String(), err, want)
		}
	}
	var out bytes.Buffer
	p := Printer{Out: &out, NoHeaders: true}
	_ = p.SetFormat("custom-columns=N:.name")
	if err := One(&p, items[0], Table[sized]{}); err != nil || out.String() != "web\n" || len(p.Unused()) > 0 {
		t.Errorf("of one: got %q %v %v", out.String(), err, p.Unused())
	}
	for format, words := range map[string]string{
		"nonsense": "must be one of table, ", "jsonpath": "must be one of", "jsonpath={.name": "jsonpath: ",
		"custom-columns=NAME": `"NAME" must be TITLE:.PATH`, "custom-columns=N:.name,": `"" must be TITLE:.PATH`,
	} {
		if err := new(Printer).SetFormat(format); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: got %v", format, err)
		}
	}
}
