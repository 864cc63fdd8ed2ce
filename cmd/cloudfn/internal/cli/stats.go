package cli

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// scoped is whose rows a command looks at.
type scoped struct{ scope, project string }

func (s *scoped) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.scope, "scope", "", "whose: project, domain or cloud (default by the token)")
	cmd.Flags().StringVar(&s.project, "project", "", "id of another project, for those who may look at it")
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions(domain.Scopes(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("project", cobra.NoFileCompletions)
}

func (s *scoped) query() url.Values {
	q := url.Values{}
	if s.scope != "" {
		q.Set("scope", s.scope)
	}
	if s.project != "" {
		q.Set("project_id", s.project)
	}
	return q
}

// statsOptions are the flags of stats.
type statsOptions struct {
	scoped
	hours int
	svg   string
	ascii bool
}

func (a *app) statsCommand() *cobra.Command {
	var o statsOptions
	cmd := &cobra.Command{
		Use: "stats", Short: "Show how many servers ran at each full hour", Args: cobra.NoArgs,
		Long: `Show how many servers ran at each full hour, as bars; -o wide as a table of numbers. Hours are UTC. One that is missing is not
known, which does not mean that nothing ran; one that is rebuilt was worked out later from Nova's history. Uncertain servers are
those whose state at the hour Nova's log does not decide: they are in no other number.`,
		Example:     "  cloudfn stats\n  cloudfn stats --hours 168 -o wide\n  cloudfn stats --svg day.svg",
		Annotations: calls("getStats"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			q := o.query()
			q.Set("hours", strconv.Itoa(o.hours))
			if o.svg != "" {
				return a.saveChart(cmd.Context(), client, q, o.svg)
			}
			found, err := api.One[api.Stats](cmd.Context(), client, "/v1/stats", q)
			if err != nil {
				return err
			}
			return a.showStats(found, o.ascii)
		},
	}
	o.flags(cmd)
	cmd.Flags().IntVar(&o.hours, "hours", 24, "how many hours, 1 to 720")
	cmd.Flags().StringVar(&o.svg, "svg", "", "write the chart to this file as SVG, instead (- is the standard output)")
	cmd.Flags().BoolVar(&o.ascii, "ascii", false, "draw with ASCII only (default as the locale says)")
	_ = cmd.RegisterFlagCompletionFunc("hours", cobra.NoFileCompletions)
	return cmd
}

func (a *app) saveChart(ctx context.Context, client *api.Client, q url.Values, file string) error {
	answer, err := client.GetAs(ctx, "/v1/stats", q, "image/svg+xml")
	if err != nil {
		return err
	}
	if file == "-" {
		_, err = a.out.Write(answer.Body)
		return err
	}
	return replaceFile(file, answer.Body)
}

func (a *app) showStats(found api.Item[api.Stats], ascii bool) error {
	switch {
	case a.print.Format == "json", a.print.Format == "yaml":
		return output.One(&a.print, found, nil, nil)
	case a.print.Format != "table" || len(a.print.Columns) > 0:
		items := make([]api.Item[api.HourStat], len(found.Value.Hours))
		for i, h := range found.Value.Hours {
			items[i].Value = h
		}
		return output.List(&a.print, items, func(h api.HourStat) string { return h.Hour.UTC().Format(time.RFC3339) }, hourColumns)
	}
	const form = "2006-01-02 15:04"
	from, to := found.Value.From.UTC().Format(form), found.Value.To.UTC().Format(form)
	fmt.Fprintf(a.out, "%s\n%s to %s UTC\n\n", output.Bold(a.print.Color, chartTitle(found.Value)), from, to)
	bars := output.Bars{Width: a.width(), ASCII: ascii || !utf8Locale(a.env), Color: a.print.Color}
	if err := bars.Write(a.out, hourBars(found.Value.Hours)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "\n%s\n%s", bars.Legend("running", "not running"), chartSummary(found.Value.Hours))
	return err
}

var hourColumns = []output.Column[api.HourStat]{
	{Title: "HOUR", Text: func(h api.HourStat) string { return h.Hour.UTC().Format("2006-01-02 15:04") }},
	{Title: "RUNNING", Text: func(h api.HourStat) string { return number(h.Running) }},
	{Title: "TOTAL", Text: func(h api.HourStat) string { return number(h.Total) }},
	{Title: "UNCERTAIN", Text: func(h api.HourStat) string {
		if h.Source == api.Missing {
			return ""
		}
		return strconv.Itoa(h.Uncertain)
	}},
	{Title: "SOURCE", State: true, Text: func(h api.HourStat) string { return string(h.Source) }},
	{Title: "BY_STATUS", Text: func(h api.HourStat) string {
		var texts []string
		for _, status := range slices.Sorted(maps.Keys(h.ByStatus)) {
			texts = append(texts, fmt.Sprintf("%s %d", status, h.ByStatus[status]))
		}
		return strings.Join(texts, ", ")
	}},
}

// number is nothing when it is not known.
func number(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func chartTitle(s api.Stats) string {
	of := "the cloud"
	switch s.Scope {
	case api.ScopeProject:
		of = "project " + value(s.ProjectID)
	case api.ScopeDomain:
		of = "domain " + value(s.DomainID)
	}
	return "Servers of " + of
}

// chartDay is how an hour is written with its day.
const chartDay = "Jan 02 15:04"

func hourBars(hours []api.HourStat) []output.Bar {
	bars := make([]output.Bar, len(hours))
	for i, h := range hours {
		form := "15:04"
		if i == 0 || h.Hour.UTC().Hour() == 0 {
			form = chartDay
		}
		bars[i] = output.Bar{Label: h.Hour.UTC().Format(form), Part: value(h.Running), All: value(h.Total), Missing: h.Running == nil || h.Total == nil}
		if h.Source == api.Rebuilt {
			bars[i].Annotation = string(h.Source)
		}
		if h.Uncertain > 0 {
			bars[i].More = fmt.Sprintf("+%d uncertain", h.Uncertain)
		}
	}
	return bars
}

// chartSummary says the last full hour, the peak, and what was not counted.
func chartSummary(hours []api.HourStat) string {
	var peak *api.HourStat
	missing, rebuilt, uncertain := 0, 0, 0
	for i, h := range hours {
		if h.Running != nil && (peak == nil || *h.Running > *peak.Running) {
			peak = &hours[i]
		}
		switch h.Source {
		case api.Missing:
			missing++
		case api.Rebuilt:
			rebuilt++
		}
		if h.Uncertain > 0 {
			uncertain++
		}
	}
	text := "last: not known\n"
	if last := hours[len(hours)-1]; last.Running != nil {
		text = fmt.Sprintf("last: %s (%s)\n", runningOf(last), last.Hour.UTC().Format(chartDay))
	}
	if peak != nil {
		text += fmt.Sprintf("peak: %s (%s)\n", runningOf(*peak), peak.Hour.UTC().Format(chartDay))
	}
	if rebuilt > 0 {
		text += fmt.Sprintf("%d of %d hours are rebuilt from Nova's history\n", rebuilt, len(hours))
	}
	if uncertain > 0 {
		text += fmt.Sprintf("%d of %d hours have uncertain servers: Nova's log does not say which state they were in\n", uncertain, len(hours))
	}
	if missing > 0 {
		text += fmt.Sprintf("%d of %d hours are missing: how many ran then is not known\n", missing, len(hours))
	}
	return text
}

// runningOf says how many servers ran at a known hour.
func runningOf(h api.HourStat) string {
	text := strconv.Itoa(*h.Running) + " running"
	if h.Uncertain > 0 {
		text += fmt.Sprintf(", %d uncertain", h.Uncertain)
	}
	return text
}

// width is that of the terminal, or what the environment says of it.
func (a *app) width() int {
	if out, ok := a.out.(*os.File); ok && a.terminal {
		if width, _, err := term.GetSize(int(out.Fd())); err == nil && width > 0 {
			return width
		}
	}
	text, _ := a.env("COLUMNS")
	if width, err := strconv.Atoi(text); err == nil && width > 0 {
		return width
	}
	return 80
}

// utf8Locale says whether the locale has more than ASCII: the first of these that is set decides, as everywhere.
func utf8Locale(env func(string) (string, bool)) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale, _ := env(name); locale != "" {
			locale = strings.ToLower(locale)
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return false
}
