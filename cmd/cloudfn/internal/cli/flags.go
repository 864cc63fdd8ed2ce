package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/files"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Body is the JSON object of the flags that were given. Each of fields is a flag, or flag:field where the field is
// not the flag's name with _ for -. A dot makes an object: quota-vcpus:quota.vcpus. Flags that the command does not
// have are skipped.
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

// flagAndField reads an entry of Body's fields.
func flagAndField(text string) (flag, field string) {
	flag, field, isRenamed := strings.Cut(text, ":")
	if !isRenamed {
		field = strings.ReplaceAll(flag, "-", "_")
	}
	return flag, field
}

func visit(flags *pflag.FlagSet, fields []string, do func(field string, value any)) {
	SetBy(flags, "", fields...)
	for _, text := range fields {
		name, field := flagAndField(text)
		if flags.Changed(name) {
			do(field, fieldOf(flags.Lookup(name).Value))
		}
	}
}

// fieldOf is a flag's value as JSON has it.
func fieldOf(given pflag.Value) any {
	switch v := given.(type) {
	case *orNone:
		if v.isNone {
			return nil
		}
		return fieldOf(v.Value)
	case *value:
		return v.field()
	case pflag.SliceValue:
		return v.GetSlice()
	}
	if kind := given.Type(); kind == "int" || kind == "bool" {
		return json.RawMessage(given.String())
	}
	return given.String()
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
		return errors.New("must be a whole number, or none")
	}
	return err
}

// notEmpty is a flag that an empty text, such as that of a variable that is not set, would turn off.
type notEmpty struct{ pflag.Value }

// Set implements pflag.Value.
func (v notEmpty) Set(text string) error {
	if text == "" {
		return errors.New("is empty: give an id, or leave the flag out")
	}
	return v.Value.Set(text)
}

// value is a pflag.Value made of functions.
type value struct {
	kind  string // as help shows it
	text  string
	set   func(text string) error
	field func() any // as JSON has it
}

// Set implements pflag.Value.
func (v *value) Set(text string) error {
	v.text = text
	return v.set(text)
}

// String implements pflag.Value.
func (v *value) String() string { return v.text }

// Type implements pflag.Value.
func (v *value) Type() string { return v.kind }

// Moment is a point in time: given as such, or by how far it is from now.
type Moment struct {
	At     time.Time
	Span   time.Duration // how far, if it was given so
	now    func() time.Time
	isPast bool

	takesNow, isNow bool // the API's now, whatever the clock here says
}

// Until adds a flag for a moment that is to come.
func (a *App) Until(cmd *cobra.Command, name, usage string) *Moment {
	m := &Moment{now: a.Now}
	m.addTo(cmd, name, usage)
	return m
}

// UntilOrNow adds a flag for a moment that is to come, or "now".
func (a *App) UntilOrNow(cmd *cobra.Command, name, usage string) {
	(&Moment{now: a.Now, takesNow: true}).addTo(cmd, name, usage)
}

// Since adds a flag for a moment that has passed.
func (a *App) Since(cmd *cobra.Command, name, usage string) {
	(&Moment{now: a.Now, isPast: true}).addTo(cmd, name, usage)
}

func (m *Moment) addTo(cmd *cobra.Command, name, usage string) {
	cmd.Flags().Var(&value{kind: "string", set: m.set, field: m.field}, name, usage)
	choices := []string{"1h", "24h", "7d", "30d"}
	if m.takesNow {
		choices = append(choices, "now")
	}
	Choices(cmd, name, choices...)
}

func (m *Moment) field() any {
	if m.isNow {
		return "now"
	}
	return m.At
}

func (m *Moment) set(text string) error {
	if m.isNow = m.takesNow && text == "now"; m.isNow {
		return nil
	}
	if at, isTime, err := ParseTime(text, m.now().Location()); isTime {
		m.At, m.Span = at.UTC(), 0
		return err
	}
	span, err := duration(text)
	if err != nil && !m.isPast {
		var period domain.Period
		if period, err = ParsePeriod(text); err == nil {
			now := m.now().UTC()
			span = period.AddTo(now).Sub(now)
		}
	}
	switch {
	case err != nil && m.isPast:
		return errors.New("must be a time such as 2026-01-02T03:04:05Z, or how long ago, such as 90m, 24h or 7d")
	case (err != nil || span == 0) && m.takesNow:
		return errors.New("must be now, how long, such as 24h or 30d, or a time such as 2027-01-01T00:00:00Z")
	case err != nil, span == 0 && !m.isPast:
		return errors.New("must be how long, such as 24h or 30d, or a time such as 2027-01-01T00:00:00Z")
	case m.isPast:
		m.At = m.now().Add(-span).UTC()
	default:
		m.At, m.Span = m.now().Add(span).UTC().Truncate(time.Second), span
	}
	return nil
}

// ParseTime reads a time as RFC 3339 has it, or as tables show it. isTime reports whether the text is meant as a time.
// The error for one without an offset has the same time with that of the zone.
func ParseTime(text string, zone *time.Location) (at time.Time, isTime bool, err error) {
	text = strings.Replace(text, " ", "T", 1)
	if at, err = time.Parse(time.RFC3339, text); err == nil {
		return at, true, nil
	}
	const noOffset = "2006-01-02T15:04:05"
	for _, layout := range []string{noOffset, "2006-01-02T15:04", time.DateOnly} {
		if at, err = time.ParseInLocation(layout, text, zone); err == nil {
			return at, true, fmt.Errorf("must have an offset from UTC: %s is that time here, and %sZ in UTC",
				at.Format(noOffset+"-07:00"), at.Format(noOffset))
		}
	}
	return at, false, nil
}

// PeriodForms are examples of what ParsePeriod takes.
const PeriodForms = "90m, 8h, 1d12h, 2w, or an ISO 8601 duration such as P1M (a month)"

// ParsePeriod reads an ISO 8601 duration, or numbers with w, d, h, m and s, such as 1d12h.
func ParsePeriod(text string) (domain.Period, error) {
	if !strings.HasPrefix(text, "P") {
		days := strings.LastIndexAny(text, "wd") + 1
		date, clock := text[:days], text[days:]
		if clock != "" {
			clock = "T" + clock
		}
		text = "P" + strings.ToUpper(date+clock)
	}
	period, err := domain.ParsePeriod(text)
	if err != nil {
		err = exit.Usagef("must be a number with m, h, d or w, such as %s", PeriodForms)
	}
	return period, err
}

// AddPeriod adds the duration of a flag that was given to a request, as ISO 8601 has it.
func AddPeriod(cmd *cobra.Command, body map[string]any, flag, field string) error {
	if SetBy(cmd.Flags(), "", flag+":"+field); !cmd.Flags().Changed(flag) {
		return nil
	}
	text, _ := cmd.Flags().GetString(flag)
	period, err := ParsePeriod(text)
	if err != nil {
		return exit.Usagef("--%s: %w", flag, err)
	}
	body[field] = period.String()
	return nil
}

// duration reads 7d, or what time.ParseDuration takes.
func duration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16) // more days would overflow
		return time.Duration(n) * 24 * time.Hour, err
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("it is negative")
	}
	return d, err
}

// Pairs adds a flag that takes KEY=VALUE, and may be repeated.
func Pairs(cmd *cobra.Command, name, usage string) {
	pairs := map[string]string{}
	cmd.Flags().Var(&value{kind: "stringArray", field: func() any { return pairs }, set: func(text string) error {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return errors.New("must be KEY=VALUE")
		}
		pairs[key] = value
		return nil
	}}, name, usage)
}

// LimitFlag adds --limit, how many things of a list the user wants (0 = all).
func LimitFlag(cmd *cobra.Command, usual int) {
	n, text := usual, strconv.Itoa(usual)
	cmd.Flags().Var(&value{kind: "int", text: text, field: func() any { return n }, set: func(text string) (err error) {
		if n, err = strconv.Atoi(text); err != nil || n < 0 {
			return errors.New("must be a number, or 0 for all")
		}
		return nil
	}}, "limit", "how many at most (0 = all)")
}

// Limit is what --limit says; 0 when the command has no such flag.
func Limit(cmd *cobra.Command) int {
	if flag := cmd.Flags().Lookup("limit"); flag != nil {
		n, _ := fieldOf(flag.Value).(int)
		return n
	}
	return 0
}

// Choice adds a flag that takes one of some values, the first by default.
func Choice(cmd *cobra.Command, name, usage string, values ...string) *string {
	chosen := values[0]
	cmd.Flags().Var(choice(&chosen, values), name, usage)
	Choices(cmd, name, values...)
	return &chosen
}

// choice is a value that is one of values, the first by default.
func choice(chosen *string, values []string) pflag.Value {
	*chosen = values[0]
	return &value{kind: "string", text: values[0], field: func() any { return *chosen }, set: func(text string) error {
		if *chosen = text; !slices.Contains(values, text) {
			return fmt.Errorf("must be one of %s", strings.Join(values, ", "))
		}
		return nil
	}}
}

// ScopeFlags add whose rows are read: --scope and --project.
func ScopeFlags(cmd *cobra.Command) {
	cmd.Flags().String("scope", "", "whose: project, domain or cloud (default by the token)")
	cmd.Flags().String("project", "", "id of another project, for those who may read its rows")
	Choices(cmd, "scope", domain.Scopes()...)
}

// ReadFile reads the file that a flag names; - is stdin.
func (a *App) ReadFile(flag, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(a.In)
	}
	text, err := os.ReadFile(name) //nolint:gosec // the user names it
	if err != nil {
		return nil, exit.Usagef("%s: %w", flag, err)
	}
	return text, nil
}

// ReadText reads a file that must be text: JSON would replace other bytes.
func (a *App) ReadText(flag, name string) (string, error) {
	text, err := a.ReadFile(flag, name)
	if err == nil && !utf8.Valid(text) {
		err = exit.Usagef("%s: %s is not UTF-8 text", flag, name)
	}
	return string(text), err
}

// WriteFile writes a file whole or not at all; - is stdout.
func (a *App) WriteFile(name string, write func(io.Writer) error) error {
	if name == "-" {
		return write(a.Out)
	}
	return files.Replace(name, write)
}

// ReadSecret reads the secret of a file, without the line break at its end.
func (a *App) ReadSecret(flag, file string) (domain.Secret, error) {
	text, err := a.ReadText(flag, file)
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(text, "\r\n")
	if secret == "" {
		return "", exit.Usagef("%s: %s is empty", flag, file)
	}
	return domain.Secret(secret), nil
}

// SecretFileFlag adds --secret-file, which Secret reads.
func SecretFileFlag(cmd *cobra.Command, usage string) { cmd.Flags().String("secret-file", "", usage) }

// Secret reads the secret of --secret-file, or prompts for it at a terminal, and adds it to a request.
func (a *App) Secret(ctx context.Context, cmd *cobra.Command, prompt string, body map[string]any) error {
	const flag = "--secret-file"
	file := cmd.Flags().Lookup("secret-file").Value.String()
	var secret domain.Secret
	var err error
	if prompter := a.prompter(ctx); file != "" {
		secret, err = a.ReadSecret(flag, file)
	} else if prompter == nil {
		err = exit.Usagef("%s is missing: it names the file with the secret (- for stdin)", flag)
	} else {
		var text string
		if text, err = prompter(prompt); err != nil {
			err = exit.Usagef("%s is missing: %w", flag, err)
		}
		secret = domain.Secret(text)
	}
	body["secret"] = secret.Reveal()
	return err
}
