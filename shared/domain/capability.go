package domain

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Capability is an expression about one attribute of a host, as in the extra specs that Nova's
// ComputeCapabilitiesFilter reads. Where Nova drops or guesses, it refuses: words that no operator takes, and an
// attribute that a host does not have never matches.
type Capability struct {
	Attribute string   // its path: hypervisor_type, cpu_info:arch
	Operator  string   // "" = the attribute is equal to the first value, blanks included
	Values    []string // one; several of <or> and <all-in>
}

// comparisons are the operators with one value. Those of numbers match no attribute that is not a number.
var comparisons = map[string]func(have, want string) bool{
	"=":    numbers(func(have, want float64) bool { return have >= want }), // as in Nova
	"==":   numbers(func(have, want float64) bool { return have == want }),
	"!=":   numbers(func(have, want float64) bool { return have != want }),
	">=":   numbers(func(have, want float64) bool { return have >= want }),
	"<=":   numbers(func(have, want float64) bool { return have <= want }),
	"s==":  func(have, want string) bool { return have == want },
	"s!=":  func(have, want string) bool { return have != want },
	"s<":   func(have, want string) bool { return have < want },
	"s<=":  func(have, want string) bool { return have <= want },
	"s>":   func(have, want string) bool { return have > want },
	"s>=":  func(have, want string) bool { return have >= want },
	"<in>": strings.Contains,
}

const (
	opOr    = "<or>"
	opAllIn = "<all-in>"
)

// capabilityOperators lists the operators, for messages.
var capabilityOperators = []string{
	"=", "==", "!=", ">=", "<=", "s==", "s!=", "s<", "s<=", "s>", "s>=", "<in>", opAllIn, opOr,
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

const (
	maxCapabilityKey = 255
	maxCapability    = 1000
)

var capabilityKey = regexp.MustCompile(`^[A-Za-z0-9_. -]+(:[A-Za-z0-9_. -]+)*$`)

// ParseCapability reads an expression. key is an attribute with the scope capabilities, or one of a single part without
// a scope. The field of an error is the key; its text names the position of the fault.
func ParseCapability(key, text string) (Capability, error) {
	scope, attribute, isScoped := strings.Cut(key, ":")
	switch {
	case len(key) > maxCapabilityKey || !capabilityKey.MatchString(key):
		return Capability{}, apperr.Malformed(key,
			"a name such as hypervisor_type or capabilities:cpu_info:arch", key)
	case !isScoped:
		attribute = key
	case scope != "capabilities":
		return Capability{}, apperr.InvalidField(key, fmt.Sprintf("unknown scope %.64q", scope),
			"capabilities:"+key, "capabilities:"+attribute)
	}
	c := Capability{Attribute: attribute}
	at, detail := c.parse(text)
	if detail != "" {
		return Capability{}, apperr.InvalidField(key, fmt.Sprintf("at character %d: %s", at, detail))
	}
	return c, nil
}

// word is a part of an expression, and the position of its first character, from 1.
type word struct {
	text string
	at   int
}

func words(text string) (found []word) {
	at, isInside := 0, false
	for _, r := range text {
		at++
		if unicode.IsSpace(r) {
			isInside = false
			continue
		}
		if !isInside {
			found, isInside = append(found, word{at: at}), true
		}
		found[len(found)-1].text += string(r)
	}
	return found
}

// parse reads the expression; detail says what is wrong with it at a position, "" = nothing.
func (c *Capability) parse(text string) (at int, detail string) {
	end := len([]rune(text)) + 1
	found := words(text)
	switch {
	case end > maxCapability+1:
		return maxCapability + 1, fmt.Sprintf("it has more than %d characters", maxCapability)
	case len(found) == 0:
		return 1, "a value is missing"
	}
	first, rest := found[0], found[1:]
	_, isComparison := comparisons[first.text]
	switch {
	case isComparison, first.text == opAllIn, first.text == opOr:
		c.Operator = first.text
	case looksLikeOperator(first.text):
		return first.at, fmt.Sprintf("%.64q is no operator; a blank follows an operator: %s", first.text,
			strings.Join(capabilityOperators, " "))
	default:
		c.Values = []string{text}
		return 0, ""
	}
	if len(rest) == 0 {
		return end, "a value is missing after " + c.Operator
	}
	switch c.Operator {
	case opOr:
		return c.parseOr(rest, end)
	case opAllIn:
		for _, w := range rest {
			c.Values = append(c.Values, w.text)
		}
		return 0, ""
	}
	return c.parseOne(rest)
}

// parseOne reads the value of an operator that takes one.
func (c *Capability) parseOne(rest []word) (at int, detail string) {
	if len(rest) > 1 {
		return rest[1].at, c.Operator + " takes one value"
	}
	isNumeric := !strings.HasPrefix(c.Operator, "s") && c.Operator != "<in>"
	if _, ok := number(rest[0].text); isNumeric && !ok {
		return rest[0].at, fmt.Sprintf("%s compares numbers, and %.64q is not a number; texts are compared by "+
			"s== s!= s<= s>=", c.Operator, rest[0].text)
	}
	c.Values = []string{rest[0].text}
	return 0, ""
}

// parseOr reads the values of <or>, with <or> between them.
func (c *Capability) parseOr(rest []word, end int) (at int, detail string) {
	for n, w := range rest {
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
	if len(rest)%2 == 0 {
		return end, "a value is missing after <or>"
	}
	return 0, ""
}

var operatorLike = regexp.MustCompile(`^(s?[<>=!]|<[a-z-]*>)`)

// looksLikeOperator reports whether a word is meant as an operator. Nova takes it for text, which no host has.
func looksLikeOperator(text string) bool { return operatorLike.MatchString(text) }

// Match reports whether a host with the attributes fits.
func (c Capability) Match(attributes map[string]string) bool {
	have, ok := attributes[c.Attribute]
	if !ok || len(c.Values) == 0 {
		return false
	}
	switch c.Operator {
	case "":
		return have == c.Values[0]
	case opOr:
		return slices.Contains(c.Values, have)
	case opAllIn:
		return !slices.ContainsFunc(c.Values, func(v string) bool { return !strings.Contains(have, v) })
	}
	compare, known := comparisons[c.Operator]
	return known && compare(have, c.Values[0])
}
