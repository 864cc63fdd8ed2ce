package cli

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// fieldsKey is the annotation of a flag with the fields of requests that it sets.
const fieldsKey = "cloudfn_fields"

// SetBy records which flags set which fields of a request, named as for Body, so that errors name the flags. within is
// put before the fields. Body and Query record theirs.
func SetBy(flags *pflag.FlagSet, within string, fields ...string) {
	for _, text := range fields {
		name, field := flagAndField(text)
		field = within + field
		flag := flags.Lookup(name)
		if flag == nil || slices.Contains(flag.Annotations[fieldsKey], field) {
			continue
		}
		_ = flags.SetAnnotation(name, fieldsKey, append(flag.Annotations[fieldsKey], field))
	}
}

// FlagOf is the flag of the running command that sets a field, such as --network private for networks[0]; the field
// where no flag is known. A field that may come from a file is one of a flag only if the flag was given.
func (a *App) FlagOf(field string) string {
	if a.command == nil {
		return field
	}
	isFromFile := a.command.Flags().Changed("file")
	var flags []*pflag.Flag
	outer := ""
	a.command.Flags().VisitAll(func(f *pflag.Flag) {
		if isFromFile && !f.Changed {
			return
		}
		for _, set := range f.Annotations[fieldsKey] {
			rest, isWithin := strings.CutPrefix(field, set)
			if !isWithin || rest != "" && rest[0] != '.' && rest[0] != '[' || len(set) < len(outer) {
				continue
			}
			if len(set) > len(outer) {
				flags, outer = nil, set
			}
			flags = append(flags, f)
		}
	})
	if len(flags) == 0 {
		return field
	}
	rest := field[len(outer):]
	if pairs, ok := fieldOf(flags[0].Value).(map[string]string); ok {
		return ofPair(flags[0], pairs, rest, field)
	}
	given, rest := ofEntry(flags, rest)
	inner := strings.TrimPrefix(rest, ".")
	name, _, _ := strings.Cut(strings.TrimPrefix(given, "--"), " ")
	if inner == "" || strings.HasPrefix(inner, strings.ReplaceAll(name, "-", "_")) {
		return given
	}
	return given + " (" + inner + ")"
}

// ofPair names the pair of a flag of pairs; the field when no pair of the flag sets it.
func ofPair(flag *pflag.Flag, pairs map[string]string, rest, field string) string {
	key, _, _ := strings.Cut(strings.TrimPrefix(rest, "."), ".")
	key, _, _ = strings.Cut(key, "[")
	if _, ok := pairs[key]; ok {
		return "--" + flag.Name + " " + key
	}
	if rest == "" {
		return "--" + flag.Name
	}
	return field
}

// ofEntry names the flag that gave the entry [n] of a list, with its value. Flags that set one list do so in the order
// of their names.
func ofEntry(flags []*pflag.Flag, rest string) (given, inner string) {
	name := "--" + flags[0].Name
	if i := slices.IndexFunc(flags, func(f *pflag.Flag) bool { return f.Changed }); i >= 0 {
		name = "--" + flags[i].Name
	}
	index, inner, isEntry := strings.Cut(strings.TrimPrefix(rest, "["), "]")
	n, err := strconv.Atoi(index)
	if !isEntry || err != nil {
		return name, rest
	}
	for _, f := range flags {
		values, ok := fieldOf(f.Value).([]string)
		if ok && n < len(values) {
			value := values[n]
			if strings.Contains(value, " ") {
				value = strconv.Quote(value)
			}
			return "--" + f.Name + " " + value, inner
		}
		n -= len(values)
	}
	return name, inner
}
