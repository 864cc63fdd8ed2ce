package managed

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

var conditionTable = output.Table[api.Condition]{
	Columns: []string{"CONDITION:type", "STATUS", "REASON", "SINCE:last_transition_at", "MESSAGE"},
	Name:    func(c api.Condition) string { return string(c.Type) },
}

var memberTable = output.Table[api.Member]{
	Columns: []string{"NAME", "STATUS*", "REVISION", "NODE", "REASON", "OBJECT+:object_id", "MEMBER+:id"},
}

func driftTable(members []api.Member) output.Table[api.Drift] {
	return output.Table[api.Drift]{
		Columns: []string{"DRIFT:field", "DECLARED", "ACTUAL", "NAME", "MEMBER+"},
		Name:    func(d api.Drift) string { return d.Field },
		Texts: map[string]func(api.Drift) string{
			"DECLARED": func(d api.Drift) string { return short(d.Declared) },
			"ACTUAL":   func(d api.Drift) string { return short(d.Actual) },
			"NAME": func(d api.Drift) string {
				for _, m := range members {
					if m.ID == cli.Value(d.Member) {
						return m.Name
					}
				}
				return ""
			},
		},
	}
}

// Print prints a resource; in a table also its conditions, its objects, what others have changed, and its spec.
func Print(a *cli.App, m api.Item[api.Managed]) error {
	if err := Noun.Print(a, m); err != nil {
		return err
	}
	if !isWhole(a) {
		return nil
	}
	if err := table(a, m.Value.Conditions, conditionTable); err != nil {
		return err
	}
	if err := table(a, m.Value.Members, memberTable); err != nil {
		return err
	}
	if err := table(a, m.Value.Drift, driftTable(m.Value.Members)); err != nil {
		return err
	}
	return PrintSpec(a, m.Raw)
}

// isWhole reports whether all of a thing is printed for people.
func isWhole(a *cli.App) bool {
	return (a.Print.Format == "table" || a.Print.Format == "wide") && len(a.Print.Columns) == 0
}

// table prints rows below what was printed before, if there are any.
func table[T any](a *cli.App, rows []T, t output.Table[T]) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out)
	return output.Values(&a.Print, rows, t)
}

// PrintSpec prints what is declared, in YAML, below the facts of a table.
func PrintSpec(a *cli.App, raw json.RawMessage) error {
	d, err := documents.New("", raw)
	if err != nil || len(d.Spec()) == 0 || !isWhole(a) {
		return err
	}
	var text bytes.Buffer
	if err := documents.WriteValue(&text, map[string]any{"spec": d.Spec()}); err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "\n%s", text.String())
	return nil
}

// Text is a value of a spec: a text as it is, any other value as JSON.
func Text(value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}
