package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// dryRun shows what would become of an order.
func (a *app) dryRun(ctx context.Context, l launch) error {
	client, err := a.api(ctx)
	if err != nil {
		return err
	}
	report, _, err := api.Send[api.LaunchReport](ctx, client, http.MethodPost, "/v1/launch?dry_run=true", l.order)
	if err != nil {
		return err
	}
	switch a.print.Format {
	case "json", "yaml":
		if err := output.One(&a.print, report, nil, nil); err != nil {
			return err
		}
	default:
		if _, err := io.WriteString(a.out, a.reportText(report.Value)); err != nil {
			return err
		}
	}
	if !report.Value.Ok {
		return wrong("the launch would fail: %s", count(len(report.Value.Problems), "problem"))
	}
	return nil
}

// reportText is a line for each thing that is found.
func (a *app) reportText(r api.LaunchReport) string {
	var text strings.Builder
	for _, p := range r.Problems {
		line := output.Paint(a.print.Color, "error") + "  " + output.Clean(p.Field+": "+p.Detail)
		if allowed := value(p.Allowed); len(allowed) > 0 {
			line += output.Clean(" (allowed: " + strings.Join(allowed, ", ") + ")")
		}
		fmt.Fprintln(&text, line)
	}
	for _, u := range r.Unchecked {
		fmt.Fprintln(&text, output.Dim(a.print.Color, "unchecked")+"  "+output.Clean(u.Field+": "+u.Detail))
	}
	if r.AsOf != nil {
		fmt.Fprintln(&text, output.Dim(a.print.Color, "as of "+stamp(*r.AsOf)))
	}
	if !r.Ok {
		return text.String()
	}
	for _, s := range value(r.Resolved) {
		line := "would launch " + s.Name + " with flavor " + s.FlavorID
		if s.ImageID != nil {
			line += ", image " + *s.ImageID
		}
		if networks := value(s.NetworkIds); len(networks) > 0 {
			line += ", " + plural(len(networks), "network") + " " + strings.Join(networks, ", ")
		}
		fmt.Fprintln(&text, output.Paint(a.print.Color, "ok")+"  "+output.Clean(line))
	}
	return text.String()
}

// count is a number of things.
func count(n int, thing string) string { return fmt.Sprintf("%d %s", n, plural(n, thing)) }

func plural(n int, thing string) string {
	if n == 1 {
		return thing
	}
	return thing + "s"
}
