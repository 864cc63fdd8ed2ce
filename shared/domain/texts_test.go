package domain

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestCheckTags: of tags that are one for Nova's tables the later one is rejected: observed with utf8mb3_general_ci,
// known of utf8mb3_unicode_ci.
func TestCheckTags(t *testing.T) {
	t.Parallel()
	for tags, want := range map[string]string{
		"web,Web": "tags[1]", "x,x ": "tags[1]", "e,é": "tags[1]", "e\u0301,É": "tags[1]",
		"ß,s": "tags[1]", "ß,ss": "tags[1]",
		"a,b,A,B ": "tags[2] tags[3]", "a,a": "tags[1]", "ｗeb,web": "tags[1]", "straße,STRASSE": "tags[1]",
		"🚀": "tags[0]", "..,.": "tags[0] tags[1]", "...": "", "Cloudfn-x": "tags[0]", "a,,b": "tags[1]",
		"a/b":                                   "tags[0]",
		"01A218FB-98f2-74de-92b6-bf947dcfe88a ": "tags[0]",
		"web,web1,team:a,ø,o,s,ss,  x,x":        "",
	} {
		if got := named(CheckTags("tags", strings.Split(tags, ","))); got != want {
			t.Errorf("%q: got %q, want %q", tags, got, want)
		}
	}
}

func named(faults []apperr.Field) string {
	var fields []string
	for _, f := range faults {
		fields = append(fields, f.Field)
	}
	slices.Sort(fields)
	return strings.Join(fields, " ")
}

// TestStorable: characters of four bytes are named with their fields, wherever they stand.
func TestStorable(t *testing.T) {
	t.Parallel()
	for field, err := range map[string]error{
		"text": CheckText("text", "a🚀", 9), "printable": CheckPrintable("printable", "a🚀", 9),
		"name": CheckName("name", "a🚀", 9), "any": CheckStorable("any", "a\x00"),
	} {
		if e := apperr.As(err); len(e.Fields) != 1 || e.Fields[0].Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	got := named(CheckAllStorable("spec", map[string]any{
		"a": "ü✓", "b": "🚀", "c": []any{"x", map[string]any{"d": "🚀"}}, "🚀": 1.0,
	}))
	if want := "spec.b spec.c[1].d spec.🚀"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got = named(CheckMetadata("metadata", map[string]string{"": "x", "k": "🚀", "ü": "x", "a-Z_0:9. x": "✓ ü"}))
	if want := "metadata metadata.k metadata.ü"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestCSVCell: no text is a formula of a spreadsheet, and numbers stay.
func TestCSVCell(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"": "", "/v1/servers": "/v1/servers", "=1+1": "'=1+1", "+1+1": "'+1+1", "-1": "-1", "+1.5": "+1.5", "-x": "'-x",
		"@SUM(A1)": "'@SUM(A1)", "\t=1": "'\t=1", "\r=1": "'\r=1", "\n1": "'\n1", "a=1": "a=1", "ä": "ä",
	} {
		if got := CSVCell(given); got != want {
			t.Errorf("%q is %q, want %q", given, got, want)
		}
	}
}
