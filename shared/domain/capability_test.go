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
		{"1", "= 1", true},
		{"3", "= 1", true}, // = is "at least"
		{"3", "> 1", true},
		{"1", "> 1", false},
		{"1", "< 1", false},
		{"0", "< 1", true},
		{"123", "= 123", true},
		{"124", "= 123", true},
		{"34", "= 234", false},
		{"2.5", "= 2", true},
		{"many", "= 2", false},
		{"Intel", "= intel", true}, // of texts, without regard to case
		{"AMD", "= intel", false},
		{"with blanks", "= with blanks ", true},
		{"x86_64", "=x86_64", true},
		{"34", "== 34", true},
		{"34.0", "== 34", true},
		{"1e2", "== 100", true},
		{"34", "== 35", false},
		{"1", "!= 2", true},
		{"1", "!= 1.0", false},
		{"3", ">= 2", true},
		{"32", ">=32", true},
		{"2", "<= 2", true},
		{"3", "<= 2", false},
		{"many", ">= 2", false},
		{"", ">= 2", false},
		{"0x10", "== 16", false},
		{"123", "s== 123", true},
		{"1234", "s== 123", false},
		{"Intel", "s== intel", false},
		{"with blanks", "s== with blanks", true},
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
		{"日本", "s== 日本", true},
	} {
		c, err := domain.ParseCapability("x", "cpu_info:arch "+tc.text)
		if err != nil {
			t.Errorf("%q: %v", tc.text, err)
			continue
		}
		if got := c.Match(domain.Node{Attributes: map[string]string{"cpu_info:arch": tc.have}}); got != tc.want {
			t.Errorf("%q for %q: %t", tc.text, tc.have, got)
		}
		if c.Match(domain.Node{Attributes: map[string]string{"arch": tc.have}}) || c.Match(domain.Node{}) {
			t.Errorf("%q matches a host without the attribute", tc.text)
		}
	}
}

// TestCapabilityScopes: an attribute has a scope or none. Sizes are those of Placement.
func TestCapabilityScopes(t *testing.T) {
	t.Parallel()
	node := domain.Node{
		VCPUs: 32, RAMMB: 65536, DiskGB: 1000, Traits: []string{"HW_CPU_X86_AVX2"},
		Attributes: map[string]string{
			"hypervisor_type": "QEMU", "cpu_info:arch": "x86_64", "cpu_info:vendor": "Intel",
			"cpu_info:model": "Nehalem", "cpu_info:features": `["aes","avx2"]`,
		},
	}
	for text, want := range map[string]bool{
		"vcpus >= 32": true, "vcpus>=33": false, "ram_mb > 65535": true, "disk_gb < 1000": false,
		"capabilities:vcpus >= 32": true, "capabilities:hypervisor_type = QEMU": true, "hypervisor_type=QEMU": true,
		"cpu_info:arch=x86_64": true, "capabilities:cpu_info:arch = x86_64": true,
		"trait:HW_CPU_X86_AVX2 = required": true, "trait:HW_CPU_X86_AVX2 = forbidden": false,
		"trait:HW_CPU_X86_SSE = required": false, "trait:HW_CPU_X86_SSE=forbidden": true,
		"hw:cpu_vendor = intel": true, "hw:cpu_vendor = amd": false, "hw:cpu_arch = x86_64": true,
		"hw:cpu_model <or> Nehalem <or> Haswell": true, "hw:cpu_features <all-in> aes avx2": true,
		"color = red": false, "hypervisor_types==1": false,
	} {
		c, err := domain.ParseCapability("x", text)
		if err != nil || c.Match(node) != want {
			t.Errorf("%q: %+v %v, want %t", text, c, err, want)
		}
	}
}

func TestCapabilitiesThatDoNotParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "at character 1: an attribute is missing",
		"  ":                                "at character 3: an attribute is missing",
		">= 4":                              "at character 1: an attribute is missing",
		"capabilities: = 4":                 "at character 1: an attribute is missing",
		"vcpus":                             "at character 6: an operator is missing",
		"vcpus 32":                          "at character 7: an operator is missing",
		"vcpüs = 3":                         "at character 4: an operator is missing",
		"x >=":                              "at character 5: a value is missing after >=",
		"x >= many":                         `at character 6: >= compares numbers, and "many" is not a number`,
		"x == NaN":                          "at character 6: == compares numbers",
		"x >= 4 5":                          "at character 8: >= takes one value",
		"  x >= 4 5":                        "at character 10: >= takes one value",
		"x => 4":                            `at character 3: unknown operator "=>"; expected one of = == `,
		"x <any> y":                         `at character 3: unknown operator "<any>"`,
		"x s= y":                            `at character 3: unknown operator "s="`,
		"x <in>":                            "at character 7: a value is missing after <in>",
		"x <all-in>":                        "at character 11: a value is missing after <all-in>",
		"x <or>":                            "at character 7: a value is missing after <or>",
		"x <or> a b":                        "at character 10: <or> is missing between two values",
		"x <or> 日 b":                        "at character 10: <or> is missing between two values",
		"x <or> a <or>":                     "at character 14: a value is missing after <or>",
		"x <or> <or> a":                     "at character 8: a value is missing before <or>",
		"hw:cpu_policy = x":                 `at character 1: "hw:cpu_policy" says nothing of a host; of the scope`,
		"hw: = x":                           "at character 1: ",
		"trait:HW = maybe":                  "at character 11: a trait is required or forbidden",
		"trait:HW >= 1":                     "at character 10: a trait takes the operator =",
		"trait:hw = required":               "at character 7: the name of a trait has capital letters",
		"trait: = required":                 "at character 7: the name of a trait",
		"trait:HW <or> a <or>":              "at character 21: a value is missing",
		"x s== " + strings.Repeat("x", 995): "at character 1001: the expression has more than 1000 characters",
	} {
		_, err := domain.ParseCapability("r[0].capabilities[1]", text)
		if err == nil || !strings.Contains(err.Error(), want) ||
			apperr.As(err).Fields[0].Field != "r[0].capabilities[1]" {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

func FuzzParseCapability(f *testing.F) {
	for _, text := range []string{
		"", "x", "x >= 4", "x <or> a <or> b", "x <all-in> a b", "x s== 日", "x => 1", "\xff <in>", "trait:HW = required",
		"hw:cpu_vendor = intel",
	} {
		f.Add(text, "4")
	}
	f.Fuzz(func(t *testing.T, text, have string) {
		c, err := domain.ParseCapability("x", text)
		if err != nil {
			if e := apperr.As(err); e.Code != apperr.Invalid || len(e.Fields) != 1 || e.Fields[0].Detail == "" {
				t.Fatalf("%q: %+v", text, e)
			}
			return
		}
		if c.Attribute == "" || len(c.Values) == 0 {
			t.Fatalf("%q: %+v", text, c)
		}
		c.Match(domain.Node{Attributes: map[string]string{c.Attribute: have}})
		_, isTrait := c.Trait()
		if c.Operator == "s==" && !isTrait &&
			!c.Match(domain.Node{Attributes: map[string]string{c.Attribute: c.Values[0]}}) {
			t.Fatalf("%q does not match its own value", text)
		}
	})
}

func TestHostWant(t *testing.T) {
	t.Parallel()
	node := domain.Node{
		Name: "n", Region: "r", Zone: "z", VCPUs: 8, RAMMB: 100, DiskGB: 10, Traits: []string{"HW_A", "HW_B"},
		Attributes: map[string]string{"hypervisor_type": "QEMU", "cpu_info:topology:cores": "4"},
	}
	hosts := domain.HostRequest{Min: 1, Max: 1}
	with := func(change func(*domain.HostRequest)) domain.HostRequest {
		want := hosts
		change(&want)
		return want
	}
	requests := func(text string) domain.HostRequest {
		return domain.HostRequest{Min: 1, Max: 1, Capabilities: []string{"vcpus >= 8", text}}
	}
	for name, tc := range map[string]struct {
		want    domain.HostRequest
		matches bool
		fault   string // the field
	}{
		"nothing": {hosts, true, ""},
		"all it has": {domain.HostRequest{
			Min: 1, Max: 2, VCPUs: 8, RAMMB: 100, DiskGB: 10, Region: "r", Zone: "z", Traits: []string{"HW_A"},
		}, true, ""},
		"more CPUs":      {with(func(w *domain.HostRequest) { w.VCPUs = 9 }), false, ""},
		"more memory":    {with(func(w *domain.HostRequest) { w.RAMMB = 101 }), false, ""},
		"more disk":      {with(func(w *domain.HostRequest) { w.DiskGB = 11 }), false, ""},
		"another region": {with(func(w *domain.HostRequest) { w.Region = "z" }), false, ""},
		"another zone":   {with(func(w *domain.HostRequest) { w.Zone = "r" }), false, ""},
		"one more trait": {with(func(w *domain.HostRequest) { w.Traits = []string{"HW_A", "HW_C"} }), false, ""},

		"an unscoped attribute": {requests("hypervisor_type = QEMU"), true, ""},
		"enough cores":          {requests("capabilities:cpu_info:topology:cores >= 4"), true, ""},
		"too few cores":         {requests("capabilities:cpu_info:topology:cores >= 5"), false, ""},
		"an absent attribute":   {requests("num_io_ops <= 5"), false, ""},
		"a trait":               {requests("trait:HW_B = required"), true, ""},

		"no hosts":        {with(func(w *domain.HostRequest) { w.Min = 0 }), true, "r[0].min"},
		"max below min":   {with(func(w *domain.HostRequest) { w.Min = 2 }), true, "r[0].max"},
		"negative":        {with(func(w *domain.HostRequest) { w.RAMMB = -1 }), true, "r[0].ram_mb"},
		"no trait's name": {with(func(w *domain.HostRequest) { w.Traits = []string{"HW_A", "hw"} }), false, "r[0].traits[1]"},
		"does not parse":  {requests("hypervisor_type >= x"), false, "r[0].capabilities[1]"},
	} {
		if got := tc.want.Matches(node); got != tc.matches {
			t.Errorf("%s: matches is %t", name, got)
		}
		err := tc.want.Validate("r[0]")
		if (err != nil) != (tc.fault != "") || err != nil && apperr.As(err).Fields[0].Field != tc.fault {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (domain.HostRequest{}).Validate(""); apperr.As(err).Fields[0].Field != "min" {
		t.Error(err)
	}
}
