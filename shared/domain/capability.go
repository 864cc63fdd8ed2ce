package domain

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// HostRequest is what hosts a reservation requests. A host is taken whole; sizes are the least that each must have.
type HostRequest struct {
	Min          int      `json:"min"`
	Max          int      `json:"max"`
	VCPUs        int      `json:"vcpus,omitempty"`
	RAMMB        int      `json:"ram_mb,omitempty"`
	DiskGB       int      `json:"disk_gb,omitempty"`
	Region       string   `json:"region,omitempty"` // "" = this cloud's
	Zone         string   `json:"zone,omitempty"`   // "" = any
	Traits       []string `json:"traits,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"` // expressions: see Capability
	Heal         Heal     `json:"heal,omitempty"`         // "" = HealAuto
}

// traitName and maxTrait are Placement's rule.
var traitName = regexp.MustCompile(`^[A-Z0-9_]+$`)

const maxTrait = 255

// Validate checks what can be checked without the hosts. field is the path of w in the request; "" = its fields are at
// the top.
func (w HostRequest) Validate(field string) error {
	if field != "" {
		field += "."
	}
	if w.Min < 1 {
		return apperr.InvalidField(field+"min", fmt.Sprintf("is %d: must be 1 or more", w.Min))
	}
	if w.Max < w.Min {
		return apperr.InvalidField(field+"max", fmt.Sprintf("is %d: must be min, %d, or more", w.Max, w.Min))
	}
	for name, size := range map[string]int{"vcpus": w.VCPUs, "ram_mb": w.RAMMB, "disk_gb": w.DiskGB} {
		if size < 0 {
			return apperr.InvalidField(field+name, fmt.Sprintf("is %d: must be 0 or more", size))
		}
	}
	for n, trait := range w.Traits {
		if len(trait) > maxTrait || !traitName.MatchString(trait) {
			return apperr.Malformed(fmt.Sprintf("%straits[%d]", field, n),
				"a trait's name of capital letters, digits and _, such as HW_CPU_X86_AVX2", trait)
		}
	}
	for n, text := range w.Capabilities {
		if _, err := ParseCapability(fmt.Sprintf("%scapabilities[%d]", field, n), text); err != nil {
			return err
		}
	}
	return nil
}

// Matches reports whether a node has what is wanted, whether it is up and free or not. An expression that does not
// parse matches no node.
func (w HostRequest) Matches(n Node) bool {
	if w.Region != "" && w.Region != n.Region || w.Zone != "" && w.Zone != n.Zone ||
		n.VCPUs < w.VCPUs || n.RAMMB < w.RAMMB || n.DiskGB < w.DiskGB {
		return false
	}
	for _, trait := range w.Traits {
		if !slices.Contains(n.Traits, trait) {
			return false
		}
	}
	for _, text := range w.Capabilities {
		c, err := ParseCapability("", text)
		if err != nil || !c.Match(n) {
			return false
		}
	}
	return true
}

// Capability is a condition about one attribute of a host: ATTRIBUTE OPERATOR VALUE. The operators are those of Nova's
// ComputeCapabilitiesFilter, and < and > besides. Where Nova drops or guesses, it refuses. A host that does not have
// the attribute never matches.
type Capability struct {
	Attribute string   // vcpus, hypervisor_type, cpu_info:arch; a trait's name after traitScope
	Operator  string   // of comparisons, <all-in> or <or>
	Values    []string // one; several of <or> and <all-in>
}

// The scopes of an attribute, as in extra specs. Without one it is an attribute, too.
const (
	capabilityScope = "capabilities:"
	traitScope      = "trait:"
	hardwareScope   = "hw:"
)

// hardware are the extra specs of the scope hw: that say something of a host, and its attribute. The others are about
// servers.
var hardware = map[string]string{
	"hw:cpu_arch":     "cpu_info:arch",
	"hw:cpu_features": "cpu_info:features",
	"hw:cpu_model":    "cpu_info:model",
	"hw:cpu_vendor":   "cpu_info:vendor",
}

const (
	opEqual = "="
	opOr    = "<or>"
	opAllIn = "<all-in>"

	traitRequired  = "required"
	traitForbidden = "forbidden"
)

// comparisons are the operators with one value. Those of numbers match no attribute that is not a number.
var comparisons = map[string]func(have, want string) bool{
	opEqual: atLeastOrEqual,
	"==":    numbers(func(have, want float64) bool { return have == want }),
	"!=":    numbers(func(have, want float64) bool { return have != want }),
	">=":    numbers(func(have, want float64) bool { return have >= want }),
	"<=":    numbers(func(have, want float64) bool { return have <= want }),
	">":     numbers(func(have, want float64) bool { return have > want }),
	"<":     numbers(func(have, want float64) bool { return have < want }),
	"s==":   func(have, want string) bool { return have == want },
	"s!=":   func(have, want string) bool { return have != want },
	"s<":    func(have, want string) bool { return have < want },
	"s<=":   func(have, want string) bool { return have <= want },
	"s>":    func(have, want string) bool { return have > want },
	"s>=":   func(have, want string) bool { return have >= want },
	"<in>":  strings.Contains,
}

// capabilityOperators lists the operators, for messages.
const capabilityOperators = "= == != >= <= > < s== s!= s< s<= s> s>= <in> <all-in> <or>"

// atLeastOrEqual compares numbers as Nova does, and texts without regard to case.
func atLeastOrEqual(have, want string) bool {
	if _, isNumber := number(want); !isNumber {
		return strings.EqualFold(have, want)
	}
	return numbers(func(have, want float64) bool { return have >= want })(have, want)
}

func numbers(compare func(have, want float64) bool) func(have, want string) bool {
	return func(have, want string) bool {
		a, okA := number(have)
		b, okB := number(want)
		return okA && okB && compare(a, b)
	}
}

var decimal = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$`)

func number(text string) (float64, bool) {
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil && decimal.MatchString(text) // neither hexadecimal nor NaN
}

// maxCapability bounds an expression, in characters.
const maxCapability = 1000

// capabilityForm splits an expression into what is before the attribute, the attribute, blanks, the operator, and the
// value. An operator that begins with s follows a blank: without one, s is the end of the attribute.
var capabilityForm = regexp.MustCompile(`(?s)^(\s*)([A-Za-z0-9_.:-]*)(\s*)(<[a-z-]+>|s?[=<>!]+)?(.*)$`)

// ParseCapability reads an expression. The error names the field, and the position of the fault in characters from 1.
func ParseCapability(field, text string) (Capability, error) {
	c, at, detail := parseCapability(text)
	if detail != "" {
		return Capability{}, apperr.InvalidField(field, fmt.Sprintf("at character %d: %s", at, detail))
	}
	return c, nil
}

func parseCapability(text string) (c Capability, at int, detail string) {
	if utf8.RuneCountInString(text) > maxCapability {
		return c, maxCapability + 1, fmt.Sprintf("the expression has more than %d characters", maxCapability)
	}
	parts := capabilityForm.FindStringSubmatch(text)
	begin := func(part int) int { return 1 + utf8.RuneCountInString(strings.Join(parts[1:part], "")) }
	c.Attribute, c.Operator = strings.TrimPrefix(parts[2], capabilityScope), parts[4]
	_, isComparison := comparisons[c.Operator]
	switch {
	case c.Attribute == "":
		return c, begin(2), "an attribute is missing, such as vcpus or cpu_info:arch"
	case c.Operator == "":
		return c, begin(4), "an operator is missing: one of " + capabilityOperators
	case !isComparison && c.Operator != opAllIn && c.Operator != opOr:
		return c, begin(4), fmt.Sprintf("unknown operator %.64q; expected one of %s", c.Operator, capabilityOperators)
	}
	if at, detail = c.parseValue(parts[5], begin(5)); detail != "" {
		return c, at, detail
	}
	switch {
	case strings.HasPrefix(c.Attribute, hardwareScope):
		if c.Attribute = hardware[c.Attribute]; c.Attribute == "" {
			return c, begin(2), fmt.Sprintf("%.64q says nothing of a host; of the scope hw: there are cpu_arch, "+
				"cpu_features, cpu_model and cpu_vendor", parts[2])
		}
	case strings.HasPrefix(c.Attribute, traitScope):
		return c.parseTrait(begin(2)+len(traitScope), begin(4), begin(5))
	}
	return c, 0, ""
}

// parseTrait checks a condition about a trait. The positions are those of its name, the operator and the value.
func (c Capability) parseTrait(name, operator, value int) (_ Capability, at int, detail string) {
	trait, _ := c.Trait()
	switch {
	case len(trait) > maxTrait || !traitName.MatchString(trait):
		return c, name, "the name of a trait has capital letters, digits and _, such as HW_CPU_X86_AVX2"
	case c.Operator != opEqual:
		return c, operator, "a trait takes the operator ="
	case c.Values[0] != traitRequired && c.Values[0] != traitForbidden:
		return c, value, "a trait is required or forbidden"
	}
	return c, 0, ""
}

// word is a part of a value, and the position of its first character.
type word struct {
	text string
	at   int
}

func words(text string, at int) (found []word) {
	isInside := false
	for _, r := range text {
		switch {
		case unicode.IsSpace(r):
			isInside = false
		case !isInside:
			found, isInside = append(found, word{text: string(r), at: at}), true
		default:
			found[len(found)-1].text += string(r)
		}
		at++
	}
	return found
}

// parseValue reads what follows the operator. Texts may contain blanks.
func (c *Capability) parseValue(text string, at int) (_ int, detail string) {
	found, end := words(text, at), at+utf8.RuneCountInString(text)
	if len(found) == 0 {
		return end, "a value is missing after " + c.Operator
	}
	switch first := found[0]; {
	case c.Operator == opOr:
		return c.parseOr(found, end)
	case c.Operator == opAllIn:
		for _, w := range found {
			c.Values = append(c.Values, w.text)
		}
		return 0, ""
	case c.Operator != opEqual && !strings.HasPrefix(c.Operator, "s") && c.Operator != "<in>":
		if _, ok := number(first.text); !ok {
			return first.at, fmt.Sprintf("%s compares numbers, and %.64q is not a number; texts are compared by "+
				"= s== s!= s< s<= s> s>=", c.Operator, first.text)
		}
		if len(found) > 1 {
			return found[1].at, c.Operator + " takes one value"
		}
	}
	c.Values = []string{strings.TrimSpace(text)}
	return 0, ""
}

// parseOr reads the values of <or>, with <or> between them.
func (c *Capability) parseOr(found []word, end int) (at int, detail string) {
	for n, w := range found {
		isValue := n%2 == 0
		switch {
		case isValue && w.text == opOr:
			return w.at, "a value is missing before <or>"
		case isValue:
			c.Values = append(c.Values, w.text)
		case w.text != opOr:
			return w.at, "<or> is missing between two values"
		}
	}
	if len(found)%2 == 0 {
		return end, "a value is missing after <or>"
	}
	return 0, ""
}

// Trait is the name of the trait that the condition is about, if it is about one.
func (c Capability) Trait() (name string, ok bool) { return strings.CutPrefix(c.Attribute, traitScope) }

// Match reports whether a host fits.
func (c Capability) Match(n Node) bool {
	if trait, ok := c.Trait(); ok {
		return slices.Contains(n.Traits, trait) == slices.Equal(c.Values, []string{traitRequired})
	}
	have, ok := n.Capabilities()[c.Attribute]
	if !ok || len(c.Values) == 0 {
		return false
	}
	switch c.Operator {
	case opOr:
		return slices.Contains(c.Values, have)
	case opAllIn:
		return !slices.ContainsFunc(c.Values, func(v string) bool { return !strings.Contains(have, v) })
	}
	compare, known := comparisons[c.Operator]
	return known && compare(have, c.Values[0])
}

// Capabilities are the attributes of a host that a Capability can be about.
func (n Node) Capabilities() map[string]string {
	all := map[string]string{
		"vcpus": strconv.Itoa(n.VCPUs), "ram_mb": strconv.Itoa(n.RAMMB), "disk_gb": strconv.Itoa(n.DiskGB),
	}
	maps.Copy(all, n.Attributes)
	return all
}
