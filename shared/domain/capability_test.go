package domain_test

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestCapabilities has the cases of Nova's own tests (nova/tests/unit/scheduler/filters/test_extra_specs_ops.py), by
// what the attribute is and the operator.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		have, text string
		want       bool
	}{
		{"1", "1", true},
		{"", "1", false},
		{"3", "1", false},
		{"222", "2", false},
		{"with blanks", "with blanks", true},
		{"1", "= 1", true},
		{"3", "= 1", true}, // = is "at least"
		{"3", "> 1", false},
		{"123", "= 123", true},
		{"124", "= 123", true},
		{"34", "= 234", false},
		{"2.5", "= 2", true},
		{"34", "== 34", true},
		{"34.0", "== 34", true},
		{"1e2", "== 100", true},
		{"34", "== 35", false},
		{"1", "!= 2", true},
		{"1", "!= 1.0", false},
		{"3", ">= 2", true},
		{"2", "<= 2", true},
		{"3", "<= 2", false},
		{"many", ">= 2", false},
		{"", ">= 2", false},
		{"0x10", "== 16", false},
		{"123", "s== 123", true},
		{"1234", "s== 123", false},
		{"1234", "s!= 123", true},
		{"123", "s!= 123", false},
		{"234", "s< 1000", false}, // texts are compared by characters
		{"1000", "s< 234", true},
		{"1000", "s<= 1000", true},
		{"2", "s> 1", true},
		{"2", "s>= 2", true},
		{"12311321", "<in> 11", true},
		{"12310321", "<in> 11", false},
		{"12310321 11", "<in> 11", true},
		{`["aes","mmx","aux"]`, "<all-in> aes mmx", true},
		{`["aes","mmx","aux"]`, "<all-in> aes txt", false},
		{`["aes","mmx","aux"]`, "<all-in> aes", true},
		{"12", "<or> 11 <or> 12", true},
		{"13", "<or> 11 <or> 12", false},
		{"12", "<or> 12", true},
		{"12", "  <or>   11\t<or> 12 ", true},
		{"x86_64", "x86_64", true},
		{"日本", "s== 日本", true},
	} {
		c, err := domain.ParseCapability("capabilities:cpu_info:arch", tc.text)
		if tc.text == "> 1" { // Nova takes it for text
			if err == nil {
				t.Errorf("%q parses", tc.text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tc.text, err)
			continue
		}
		if got := c.Match(map[string]string{"cpu_info:arch": tc.have}); got != tc.want {
			t.Errorf("%q for %q: %t", tc.text, tc.have, got)
		}
		if c.Match(map[string]string{"arch": tc.have}) || c.Match(nil) {
			t.Errorf("%q matches a host without the attribute", tc.text)
		}
	}
}

func TestCapabilityKeys(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"hypervisor_type":              "hypervisor_type",
		"capabilities:hypervisor_type": "hypervisor_type",
		"capabilities:cpu_info:arch":   "cpu_info:arch",
		"cpu_info:arch":                "", "trait:HW_CPU": "", "hw:cpu_policy": "", "": "", ":x": "", "x:": "",
		"capabilities:": "", "capabilities::x": "", "capabilities": "capabilities", "a\x00": "",
		strings.Repeat("x", 256): "",
	} {
		c, err := domain.ParseCapability(key, "1")
		if c.Attribute != want || (err == nil) != (want != "") {
			t.Errorf("%q: %+v %v", key, c, err)
		}
		if err != nil && (apperr.CodeOf(err) != apperr.Invalid || apperr.As(err).Fields[0].Field != key) {
			t.Errorf("%q: %+v", key, err)
		}
	}
	_, err := domain.ParseCapability("cpu_info:arch", "x86_64")
	if !strings.Contains(strings.Join(apperr.As(err).Fields[0].Allowed, " "), "capabilities:cpu_info:arch") {
		t.Errorf("it is not said what would be right: %v", err)
	}
}

func TestCapabilitiesThatDoNotParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "at character 1: a value is missing",
		"  ":                      "at character 1: a value is missing",
		">=":                      "at character 3: a value is missing after >=",
		"é>= 4":                   "", // text
		">= many":                 `at character 4: >= compares numbers, and "many" is not a number`,
		"== NaN":                  "at character 4: == compares numbers",
		">= 4 5":                  "at character 6: >= takes one value",
		"  >= 4 5":                "at character 8: >= takes one value",
		">=4":                     `at character 1: ">=4" is no operator`,
		"=> 4":                    `at character 1: "=>" is no operator`,
		"<any> x":                 `at character 1: "<any>" is no operator`,
		"s= x":                    `at character 1: "s=" is no operator`,
		"<in>":                    "at character 5: a value is missing after <in>",
		"<in> a b":                "at character 8: <in> takes one value",
		"<all-in>":                "at character 9: a value is missing after <all-in>",
		"<or>":                    "at character 5: a value is missing after <or>",
		"<or> a b":                "at character 8: <or> is missing between two values",
		"<or> 日 b":                "at character 8: <or> is missing between two values",
		"<or> a <or>":             "at character 12: a value is missing after <or>",
		"<or> <or> a":             "at character 6: a value is missing before <or>",
		"sse4":                    "",
		strings.Repeat("x", 1001): "at character 1001: it has more than 1000 characters",
	} {
		_, err := domain.ParseCapability("capabilities:x", text)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

func FuzzParseCapability(f *testing.F) {
	for _, text := range []string{"", "x", ">= 4", "<or> a <or> b", "<all-in> a b", "s== 日", "=> 1", "\xff <in>"} {
		f.Add("capabilities:cpu_info:arch", text, "4")
	}
	f.Fuzz(func(t *testing.T, key, text, have string) {
		c, err := domain.ParseCapability(key, text)
		if err != nil {
			if e := apperr.As(err); e.Code != apperr.Invalid || len(e.Fields) != 1 || e.Fields[0].Detail == "" {
				t.Fatalf("%q %q: %+v", key, text, e)
			}
			return
		}
		if c.Attribute == "" || len(c.Values) == 0 {
			t.Fatalf("%q %q: %+v", key, text, c)
		}
		c.Match(map[string]string{c.Attribute: have})
		if c.Match(nil) {
			t.Fatalf("%q %q matches nothing", key, text)
		}
		if c.Operator == "" && !c.Match(map[string]string{c.Attribute: text}) {
			t.Fatalf("%q does not match itself", text)
		}
	})
}

func TestHostWant(t *testing.T) {
	t.Parallel()
	node := domain.Node{
		Name: "n", Region: "r", Zone: "z", VCPUs: 8, RAMMB: 100, DiskGB: 10, Traits: []string{"HW_A", "HW_B"},
		Attributes: map[string]string{"hypervisor_type": "QEMU", "cpu_info:topology:cores": "4"},
	}
	hosts := domain.HostWant{Min: 1, Max: 1}
	with := func(change func(*domain.HostWant)) domain.HostWant {
		want := hosts
		change(&want)
		return want
	}
	asks := func(key, text string) domain.HostWant {
		return domain.HostWant{Min: 1, Max: 1, Capabilities: map[string]string{key: text}}
	}
	for name, tc := range map[string]struct {
		want    domain.HostWant
		matches bool
		fault   string // the field
	}{
		"nothing": {hosts, true, ""},
		"all it has": {domain.HostWant{
			Min: 1, Max: 2, VCPUs: 8, RAMMB: 100, DiskGB: 10, Region: "r", Zone: "z", Traits: []string{"HW_A"},
		}, true, ""},
		"more CPUs":      {with(func(w *domain.HostWant) { w.VCPUs = 9 }), false, ""},
		"more memory":    {with(func(w *domain.HostWant) { w.RAMMB = 101 }), false, ""},
		"more disk":      {with(func(w *domain.HostWant) { w.DiskGB = 11 }), false, ""},
		"another region": {with(func(w *domain.HostWant) { w.Region = "z" }), false, ""},
		"another zone":   {with(func(w *domain.HostWant) { w.Zone = "r" }), false, ""},
		"one more trait": {with(func(w *domain.HostWant) { w.Traits = []string{"HW_A", "HW_C"} }), false, ""},

		"an unscoped attribute": {asks("hypervisor_type", "QEMU"), true, ""},
		"enough cores":          {asks("capabilities:cpu_info:topology:cores", ">= 4"), true, ""},
		"too few cores":         {asks("capabilities:cpu_info:topology:cores", ">= 5"), false, ""},
		"an absent attribute":   {asks("num_io_ops", "<= 5"), false, ""},

		"no hosts":         {with(func(w *domain.HostWant) { w.Min = 0 }), true, "r[0].min"},
		"max below min":    {with(func(w *domain.HostWant) { w.Min = 2 }), true, "r[0].max"},
		"negative":         {with(func(w *domain.HostWant) { w.RAMMB = -1 }), true, "r[0].ram_mb"},
		"no trait's name":  {with(func(w *domain.HostWant) { w.Traits = []string{"HW_A", "hw"} }), false, "r[0].traits[1]"},
		"does not parse":   {asks("hypervisor_type", ">= x"), false, "r[0].capabilities.hypervisor_type"},
		"an unknown scope": {asks("hw:x", "1"), false, "r[0].capabilities.hw:x"},
	} {
		if got := tc.want.Matches(node); got != tc.matches {
			t.Errorf("%s: matches is %t", name, got)
		}
		err := tc.want.Validate("r[0]")
		if (err != nil) != (tc.fault != "") || err != nil && apperr.As(err).Fields[0].Field != tc.fault {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (domain.HostWant{}).Validate(""); apperr.As(err).Fields[0].Field != "min" {
		t.Error(err)
	}
}
