package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Body is the JSON object of the flags that were given. Each of fields is a flag, or flag:field where the field is not the
// flag's name with _ for -. A dot makes an object: quota-vcpus:quota.vcpus. Flags that the command does not have are skipped.
func Body(flags *pflag.FlagSet, fields ...string) map[string]any {
	body := map[string]any{}
	visit(flags, fields, func(field string, value any) {
		outer, inner, isNested := strings.Cut(field, ".")
		if !isNested {
			body[field] = value
			return
		}
		object, ok := body[outer].(map[string]any)
		if !ok {
			object = map[string]any{}
			body[outer] = object
		}
		object[inner] = value
	})
	return body
}

// Query is the query of the flags that were given, named as for Body.
func Query(flags *pflag.FlagSet, fields ...string) url.Values {
	query := url.Values{}
	visit(flags, fields, func(field string, value any) {
		switch value := value.(type) {
		case []string:
			if len(value) > 0 {
				query.Set(field, strings.Join(value, ","))
			}
		case json.RawMessage:
			query.Set(field, string(value))
		case time.Time:
			query.Set(field, value.Format(time.RFC3339Nano))
		default:
			if text := fmt.Sprint(value); text != "" {
				query.Set(field, text)
			}
		}
	})
	return query
}

func visit(flags *pflag.FlagSet, fields []string, do func(field string, value any)) {
	for _, text := range fields {
		name, field, isRenamed := strings.Cut(text, ":")
		if !isRenamed {
			field = strings.ReplaceAll(name, "-", "_")
		}
		if flags.Changed(name) {
			do(field, fieldOf(flags.Lookup(name).Value))
		}
	}
}

// fieldOf is a flag's value as JSON has it.
func fieldOf(value pflag.Value) any {
	switch v := value.(type) {
	case interface{ field() any }:
		return v.field()
	case pflag.SliceValue:
		return v.GetSlice()
	}
	if kind := value.Type(); kind == "int" || kind == "bool" {
		return json.RawMessage(value.String())
	}
	return value.String()
}

// orNone is a flag that also takes the word none, which is null in JSON.
type orNone struct {
	pflag.Value
	isNone bool
}

// OrNone makes flags take the word none, too.
func OrNone(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flag := flags.Lookup(name)
		flag.Value = &orNone{Value: flag.Value}
	}
}

// Set implements pflag.Value.
func (v *orNone) Set(text string) error {
	if v.isNone = text == "none"; v.isNone {
		return nil
	}
	err := v.Value.Set(text)
	if err != nil && v.Type() == "int" {
		return fmt.Errorf("must be a whole number, or none")
	}
	return err
}

func (v *orNone) field() any {
	if v.isNone {
		return nil
	}
	return fieldOf(v.Value)
}

// Moment is a flag's point in time: a time, or how far it is from now.
type Moment struct {
	At   time.Time
	Span time.Duration // how far, if it was given so

	text   string
	now    func() time.Time
	isPast bool
}

// Until adds a flag for a moment that is to come.
func (a *App) Until(cmd *cobra.Command, name, usage string) *Moment {
	m := &Moment{now: a.Now}
	cmd.Flags().Var(m, name, usage)
	Choices(cmd, name, "1h", "24h", "7d", "30d")
	return m
}

// Since adds a flag for a moment that is over.
func (a *App) Since(cmd *cobra.Command, name, usage string) {
	cmd.Flags().Var(&Moment{now: a.Now, isPast: true}, name, usage)
	Choices(cmd, name, "1h", "24h", "7d")
}

// Set implements pflag.Value.
func (m *Moment) Set(text string) error {
	m.text = text
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		m.At, m.Span = at.UTC(), 0
		return nil
	}
	span, err := duration(text)
	switch {
	case err != nil && m.isPast:
		return fmt.Errorf("must be a time such as 2026-01-02T03:04:05Z, or how long ago, such as 90m, 24h or 7d")
	case err != nil, span == 0 && !m.isPast:
		return fmt.Errorf("must be how long, such as 24h or 30d, or a time such as 2027-01-01T00:00:00Z")
	case m.isPast:
		m.At = m.now().Add(-span).UTC()
	default:
		m.At, m.Span = m.now().Add(span).UTC().Truncate(time.Second), span
	}
	return nil
}

// String implements pflag.Value.
func (m *Moment) String() string { return m.text }

// Type implements pflag.Value.
func (m *Moment) Type() string { return "string" }

func (m *Moment) field() any { return m.At }

// duration reads 7d, or what time.ParseDuration takes.
func duration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16) // more days would overflow
		return time.Duration(n) * 24 * time.Hour, err
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	return d, err
}

// Pairs adds a flag that takes KEY=VALUE, and may be repeated.
func Pairs(cmd *cobra.Command, name, usage string) { cmd.Flags().Var(pairs{}, name, usage) }

type pairs map[string]string

// Set implements pflag.Value.
func (p pairs) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return fmt.Errorf("must be KEY=VALUE")
	}
	p[key] = value
	return nil
}

// String implements pflag.Value.
func (p pairs) String() string { return "" }

// Type implements pflag.Value.
func (p pairs) Type() string { return "stringArray" }

func (p pairs) field() any { return p }

// LimitFlag adds --limit, how many things of a list the user wants (0 = all).
func LimitFlag(cmd *cobra.Command, usual int) {
	cmd.Flags().Var((*limit)(&usual), "limit", "how many at most (0 = all)")
	Choices(cmd, "limit")
}

type limit int

// Set implements pflag.Value.
func (l *limit) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return fmt.Errorf("must be a number, or 0 for all")
	}
	*l = limit(n)
	return nil
}

// String implements pflag.Value.
func (l *limit) String() string { return strconv.Itoa(int(*l)) }

// Type implements pflag.Value.
func (l *limit) Type() string { return "int" }

// Limit is what --limit says; 0 when the command has no such flag.
func Limit(cmd *cobra.Command) int {
	if flag := cmd.Flags().Lookup("limit"); flag != nil {
		return int(*flag.Value.(*limit)) //nolint:forcetypeassert // LimitFlag's
	}
	return 0
}

// Choice adds a flag that takes one of some values, the first by default.
func Choice(cmd *cobra.Command, name, usage string, values ...string) *string {
	chosen := values[0]
	cmd.Flags().Var(&choice{&chosen, values}, name, usage)
	Choices(cmd, name, values...)
	return &chosen
}

type choice struct {
	chosen *string
	values []string
}

// Set implements pflag.Value.
func (c *choice) Set(text string) error {
	if !slices.Contains(c.values, text) {
		return fmt.Errorf("must be one of %s", strings.Join(c.values, ", "))
	}
	*c.chosen = text
	return nil
}

// String implements pflag.Value.
func (c *choice) String() string { return *c.chosen }

// Type implements pflag.Value.
func (c *choice) Type() string { return "string" }

// ScopeFlags add whose rows are read: --scope and --project.
func ScopeFlags(cmd *cobra.Command) {
	cmd.Flags().String("scope", "", "whose: project, domain or cloud (default by the token)")
	cmd.Flags().String("project", "", "id of another project, for those who may read its rows")
	Choices(cmd, "scope", domain.Scopes()...)
	Choices(cmd, "project")
}
