package servers

import (
	"net/http"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func (s *servers) setCommand() *cobra.Command {
	cmd := s.changeCommand("set", "Set a server's name, description, metadata and tags",
		func(cmd *cobra.Command, tags []string) (map[string]any, error) {
			body := cli.Body(cmd.Flags(), "name", "description", "metadata")
			added, _ := cmd.Flags().GetStringArray("tag")
			for _, tag := range added {
				if !slices.Contains(tags, tag) {
					tags = append(tags, tag)
				}
			}
			if len(added) > 0 {
				body["tags"] = tags
			}
			return body, nil
		})
	cmd.Example = "  cloudfn servers set web-1 --description 'the shop' --metadata stage=production --tag blue"
	flags := cmd.Flags()
	flags.String("name", "", "another name")
	flags.String("description", "", "what it is for")
	cli.Pairs(cmd, "metadata", "KEY=VALUE, which the server has then besides its others; may be repeated")
	flags.StringArray("tag", nil, "a tag that the server has then besides its others; may be repeated")
	cmd.MarkFlagsOneRequired("name", "description", "metadata", "tag")
	return cmd
}

func (s *servers) unsetCommand() *cobra.Command {
	cmd := s.changeCommand("unset", "Remove a server's description, and items of its metadata and tags",
		func(cmd *cobra.Command, tags []string) (map[string]any, error) {
			body := map[string]any{}
			if is, _ := cmd.Flags().GetBool("description"); is {
				body["description"] = nil
			}
			keys, _ := cmd.Flags().GetStringArray("metadata")
			items := map[string]any{}
			for _, key := range keys {
				items[key] = nil
			}
			if len(items) > 0 {
				body["metadata"] = items
			}
			removed, _ := cmd.Flags().GetStringArray("tag")
			for _, tag := range removed {
				if domain.IsOwnTag(tag) {
					return nil, exit.Usagef("--tag %s is a tag of cloudfn, by which servers are found: it stays", tag)
				}
			}
			if len(removed) > 0 {
				body["tags"] = slices.DeleteFunc(tags, func(tag string) bool { return slices.Contains(removed, tag) })
			}
			return body, nil
		})
	cmd.Example = "  cloudfn servers unset web-1 --metadata stage --tag blue"
	flags := cmd.Flags()
	flags.Bool("description", false, "remove its description")
	flags.StringArray("metadata", nil, "the key of an item to remove; may be repeated")
	flags.StringArray("tag", nil, "a tag to remove; may be repeated")
	cmd.MarkFlagsOneRequired("description", "metadata", "tag")
	return cmd
}

// changeCommand is a command that changes what is written on a server. body gets its tags without those of cloudfn, if
// the flag tag is given.
func (s *servers) changeCommand(
	name, short string, body func(cmd *cobra.Command, tags []string) (map[string]any, error),
) *cobra.Command {
	return s.oneCommand(name, short, []string{"changeServer", "getServer"}, func(cmd *cobra.Command, id string) error {
		if err := s.ownOnly(); err != nil {
			return err
		}
		path, tags := "/v1/servers/"+id, []string{}
		if cmd.Flags().Changed("tag") {
			found, err := api.Get[api.Server](cmd.Context(), s.API(), path, nil)
			if err != nil {
				return err
			}
			tags = slices.DeleteFunc(slices.Clone(domain.Deref(found.Value.Tags)), domain.IsOwnTag)
		}
		change, err := body(cmd, tags)
		if err != nil {
			return err
		}
		changed, err := api.Send[api.Server](cmd.Context(), s.API(), http.MethodPatch, path, change)
		if err != nil {
			return err
		}
		return output.One(&s.Print, changed, detailTable(changed, ""))
	})
}
