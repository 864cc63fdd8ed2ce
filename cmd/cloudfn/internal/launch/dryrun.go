package launch

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// dryRun shows what an order would do.
func (l *launch) dryRun(ctx context.Context) error {
	report, err := api.Send[api.LaunchReport](ctx, l.API(), http.MethodPost, "/v1/launch?dry_run=true", l.order)
	if err != nil {
		return err
	}
	if l.Print.IsData() {
		err = output.One(&l.Print, report, output.Table[api.LaunchReport]{})
	} else {
		_, err = fmt.Fprint(l.Out, reportText(report.Value, l.Print.Color))
	}
	if err == nil && !report.Value.Ok {
		problems := output.Count(len(report.Value.Problems), "problem")
		return exit.Usagef("the launch would fail: %s", problems)
	}
	return err
}

// reportText has a line for each finding.
func reportText(r api.LaunchReport, color bool) string {
	var text strings.Builder
	for _, p := range r.Problems {
		line := api.WithAllowed(p.Field+": "+p.Detail, "", cli.Value(p.Allowed))
		fmt.Fprintln(&text, output.Paint(color, "error")+"  "+output.Clean(line))
	}
	for _, u := range r.Unchecked {
		fmt.Fprintln(&text, output.Dim(color, "unchecked")+"  "+output.Clean(u.Field+": "+u.Detail))
	}
	if r.AsOf != nil {
		fmt.Fprintln(&text, output.Dim(color, "as of "+output.Time(*r.AsOf)))
	}
	if !r.Ok {
		return text.String()
	}
	for _, s := range cli.Value(r.Resolved) {
		line := "would launch " + s.Name + " with flavor " + s.FlavorID
		if s.ImageID != nil {
			line += ", image " + *s.ImageID
		}
		if networks := cli.Value(s.NetworkIds); len(networks) > 0 {
			line += ", " + output.Plural(len(networks), "network") + " " + strings.Join(networks, ", ")
		}
		fmt.Fprintln(&text, output.Paint(color, "ok")+"  "+output.Clean(line))
	}
	return text.String()
}
