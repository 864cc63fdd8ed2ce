package resources

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var keyPairTable = output.Table[api.KeyPairCreated]{
	Name:    func(k api.KeyPairCreated) string { return k.Name },
	Columns: []string{"NAME", "FINGERPRINT", "TYPE", "PUBLIC_KEY"},
}

// KeyPairs holds the commands for key pairs.
func KeyPairs(a *cli.App) *cobra.Command {
	return cli.Group("keypairs", "Manage your SSH key pairs", listKeyPairs(a), createKeyPair(a), deleteKeyPair(a))
}

func listKeyPairs(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List your SSH key pairs", Args: cobra.NoArgs, Aliases: []string{"ls"},
		Annotations: cli.Calls("listResources"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := get(cmd.Context(), a, "keypairs")
			if err == nil {
				err = failures(r)
			}
			if err != nil {
				return err
			}
			return list(&a.Print, r.Keypairs, nil, "NAME", "FINGERPRINT", "TYPE")
		},
	}
}

func deleteKeyPair(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "delete KEYPAIR...", Short: "Delete SSH key pairs, such as those that launches generated",
		Long: `Delete SSH key pairs of yours. One that a launch generated is named cloudfn- and the id of the order:
orders show shows it. It stays when its servers are deleted. Servers keep the public key that they have.`,
		Example: "  cloudfn keypairs delete cloudfn-019b7c5e-2a10-7c44-9d0b-2f6a1c0e9a11",
		Args:    cobra.MinimumNArgs(1), Annotations: cli.Calls("deleteKeyPair"),
		ValidArgsFunction: a.Complete(0, Finder(a, "keypairs")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(args, func(name string) error {
				err := a.API().Do(cmd.Context(), http.MethodDelete, path+"/keypairs/"+url.PathEscape(name), nil, nil)
				return cli.Near(err, name, func() (names []string) {
					r, _ := get(cmd.Context(), a, "keypairs")
					for _, pair := range domain.Deref(r.Keypairs) {
						names = append(names, pair.Name)
					}
					return names
				})
			})
		},
	}
}

func createKeyPair(a *cli.App) *cobra.Command {
	var private, public string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create an SSH key pair, or import the public key of one",
		Example: "  cloudfn keypairs create laptop --file laptop.key\n" +
			"  cloudfn keypairs create laptop --public-key ~/.ssh/id_ed25519.pub",
		Args: cobra.ExactArgs(1), Annotations: cli.Calls("createKeyPair"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"name": args[0]}
			if public == "" {
				return generateKeyPair(cmd, a, body, private)
			}
			text, err := os.ReadFile(public) //nolint:gosec // the user names it
			if err != nil {
				return exit.Usagef("--public-key: %w", err)
			}
			body["public_key"] = strings.TrimSpace(string(text))
			made, err := cli.SendOnce[api.KeyPairCreated](cmd.Context(), a, path+"/keypairs", body)
			if err != nil {
				return err
			}
			return output.One(&a.Print, made, keyPairTable)
		},
	}
	cmd.Flags().StringVar(&private, "file", "", "make a pair, and write its private key to this new file")
	cmd.Flags().StringVar(&public, "public-key", "", "file with the public key of a pair that you have")
	cmd.MarkFlagsMutuallyExclusive("file", "public-key")
	cmd.MarkFlagsOneRequired("file", "public-key")
	return cmd
}

// generateKeyPair has a pair made, and writes its private key to a new file. That is made first: the key is shown once.
func generateKeyPair(cmd *cobra.Command, a *cli.App, body map[string]any, name string) (err error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the user names it
	switch {
	case errors.Is(err, os.ErrExist):
		return exit.Usagef("--file: %s is there already, and is not overwritten", name)
	case err != nil:
		return exit.Usagef("--file: %w", err)
	}
	made, err := cli.SendOnce[api.KeyPairCreated](cmd.Context(), a, path+"/keypairs", body)
	if err == nil && made.Value.PrivateKey != nil {
		if _, err = file.WriteString(*made.Value.PrivateKey); err != nil {
			err = exit.Failedf("the private key could not be written, and is not shown again: "+
				"delete the key pair (%w)", err)
		}
	}
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(name)
		return err
	}
	return output.One(&a.Print, withoutPrivateKey(made), keyPairTable)
}

// withoutPrivateKey is a key pair as it is printed: the private key is in its file alone.
func withoutPrivateKey(made api.Item[api.KeyPairCreated]) api.Item[api.KeyPairCreated] {
	made.Value.PrivateKey = nil
	made.Raw, _ = json.Marshal(made.Value) //nolint:errchkjson,gosec // texts; the private key is nil
	return made
}
