// Package stats holds the command that shows how many servers ran at each full hour.
package stats

import (
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const path = "/v1/stats"

// Command shows them.
func Command(a *cli.App) *cobra.Command {
	var svg string
	var isASCII bool
	cmd := &cobra.Command{
		Use: "stats", Short: "Show how many servers ran at each full hour", Args: cobra.NoArgs,
		Long: `Show how many servers ran at each full hour, as bars; -o wide as a table of numbers. Hours are UTC.
Launched are the servers that were created in the hour that ends then, deleted ones too. The numbers of a missing hour
are unknown: servers may have run. A rebuilt hour was computed later, from Nova's history. Uncertain servers are those
whose state at the hour Nova's log does not show; of the other numbers only launched counts them.`,
		Example:     "  cloudfn stats\n  cloudfn stats --hours 168 -o wide\n  cloudfn stats --svg day.svg",
		Annotations: cli.Calls("getStats"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := cli.Query(cmd.Flags(), "scope", "project:project_id", "hours")
			if svg != "" {
				return saveChart(cmd, a, query, svg)
			}
			found, err := api.Get[api.Stats](cmd.Context(), a.API(), path, query)
			if err != nil {
				return err
			}
			return show(a, found, isASCII)
		},
	}
	cli.ScopeFlags(cmd)
	cmd.Flags().Int("hours", 24, "how many hours, 1 to 720")
	cmd.Flags().StringVar(&svg, "svg", "", "write the chart to this file as SVG instead (- is the standard output)")
	cmd.Flags().BoolVar(&isASCII, "ascii", false, "draw with ASCII only (default by the locale)")
	return cmd
}

func saveChart(cmd *cobra.Command, a *cli.App, query url.Values, file string) error {
	return a.WriteFile(file, func(w io.Writer) error {
		return a.API().Copy(cmd.Context(), w, path, query, "image/svg+xml")
	})
}

func show(a *cli.App, found api.Item[api.Stats], isASCII bool) error {
	p, stats := &a.Print, found.Value
	switch {
	case p.IsData():
		return output.One(p, found, output.Table[api.Stats]{})
	case p.Format != "table" || len(p.Columns) > 0 || p.Sort != "" || p.NoHeaders:
		return output.Values(p, stats.Hours, hourTable)
	}
	from, to := stats.From.UTC().Format(minutes), stats.To.UTC().Format(minutes)
	fmt.Fprintf(a.Out, "%s\n%s to %s UTC\n\n", output.Bold(p.Color, title(stats)), from, to)
	chart := output.Bars{Width: a.Width(), ASCII: isASCII || !a.HasUTF8(), Color: p.Color}
	if err := chart.Write(a.Out, bars(stats.Hours)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "\n%s\n%s", chart.Legend("running", "not running"), summary(stats.Hours))
	return err
}

const minutes = "2006-01-02 15:04"

var hourTable = output.Table[api.HourStat]{
	Name:    func(h api.HourStat) string { return h.Hour.UTC().Format(time.RFC3339) },
	Columns: []string{"HOUR", "RUNNING", "TOTAL", "LAUNCHED", "UNCERTAIN", "SOURCE*", "BY_STATUS"},
	Texts: map[string]func(api.HourStat) string{
		"HOUR":      func(h api.HourStat) string { return h.Hour.UTC().Format(minutes) + "Z" },
		"UNCERTAIN": uncertain,
		"BY_STATUS": byStatus,
	},
}

func uncertain(h api.HourStat) string {
	if h.Source == api.Missing {
		return ""
	}
	return strconv.Itoa(h.Uncertain)
}

func byStatus(h api.HourStat) string {
	var texts []string
	for _, status := range slices.Sorted(maps.Keys(h.ByStatus)) {
		texts = append(texts, fmt.Sprintf("%s %d", status, h.ByStatus[status]))
	}
	return strings.Join(texts, ", ")
}

func title(s api.Stats) string {
	switch s.Scope {
	case api.ScopeProject:
		return "Servers of project " + domain.Deref(s.ProjectID)
	case api.ScopeDomain:
		return "Servers of domain " + domain.Deref(s.DomainID)
	}
	return "Servers of the cloud"
}

// dayAndHour is how the chart shows the first hour of a day.
const dayAndHour = "Jan 02 15:04"

func bars(hours []api.HourStat) []output.Bar {
	bars := make([]output.Bar, len(hours))
	for i, h := range hours {
		format := "15:04"
		if i == 0 || h.Hour.UTC().Hour() == 0 {
			format = dayAndHour
		}
		bars[i] = output.Bar{
			Label: h.Hour.UTC().Format(format), Part: domain.Deref(h.Running), All: domain.Deref(h.Total),
			Missing: h.Running == nil || h.Total == nil,
		}
		if h.Source == api.Rebuilt {
			bars[i].Annotation = string(h.Source)
		}
		var more []string
		if n := domain.Deref(h.Launched); n > 0 {
			more = append(more, fmt.Sprintf("(%d launched)", n))
		}
		if h.Uncertain > 0 {
			more = append(more, fmt.Sprintf("+%d uncertain", h.Uncertain))
		}
		bars[i].More = strings.Join(more, " ")
	}
	return bars
}

// summary has the last hour, the peak, what was launched, and what is uncertain or missing.
func summary(hours []api.HourStat) string {
	var peak *api.HourStat
	missing, rebuilt, uncertain, launched, launchedIn := 0, 0, 0, 0, 0
	for i, h := range hours {
		if h.Launched != nil {
			launched, launchedIn = launched+*h.Launched, launchedIn+1
		}
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
		text = "last: " + running(last)
	}
	if peak != nil {
		text += "peak: " + running(*peak)
	}
	if launchedIn > 0 {
		text += fmt.Sprintf("launched: %d in %d hours\n", launched, launchedIn)
	}
	for _, note := range []struct {
		n    int
		text string
	}{
		{rebuilt, "are rebuilt from Nova's history"},
		{uncertain, "have uncertain servers: Nova's log does not say which state they were in"},
		{missing, "are missing: how many ran then is not known"},
	} {
		if note.n > 0 {
			text += fmt.Sprintf("%d of %d hours %s\n", note.n, len(hours), note.text)
		}
	}
	return text
}

// running is the line of an hour whose numbers are known.
func running(h api.HourStat) string {
	text := strconv.Itoa(*h.Running) + " running"
	if h.Uncertain > 0 {
		text += fmt.Sprintf(", %d uncertain", h.Uncertain)
	}
	return text + " (" + h.Hour.UTC().Format(dayAndHour) + ")\n"
}
