package cli

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// exportTypes are the formats of an export, and their content types.
var exportTypes = map[string]string{"csv": "text/csv", "ndjson": "application/x-ndjson"}

func (a *app) requestsExportCommand() *cobra.Command {
	var which requestsOptions
	var format, file string
	formats := []string{"csv", "ndjson"}
	cmd := &cobra.Command{
		Use: "export", Args: cobra.NoArgs,
		Short: "Write the request log, all of it that is selected, as CSV or as a line of JSON for each request",
		Example: "  cloudfn requests export --since 7d --file requests.csv\n" +
			"  cloudfn requests export --acted-through any --format ndjson | jq .user_name",
		Annotations: calls("listRequests"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(formats, format) {
				return wrong("--format is %q: it must be one of %s", format, strings.Join(formats, ", "))
			}
			q, err := which.query(a.now())
			if err != nil {
				return err
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			write := func(w io.Writer) error {
				return client.CopyAs(cmd.Context(), w, "/v1/requests", q, exportTypes[format])
			}
			if file == "-" {
				return write(a.out)
			}
			return writeFile(file, write)
		},
	}
	which.flags(cmd)
	cmd.Flags().StringVar(&format, "format", "csv", "csv or ndjson")
	cmd.Flags().StringVarP(&file, "file", "f", "-", "write to this file, whole or not at all (- is the standard output)")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
