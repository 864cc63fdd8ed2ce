package resources

import (
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

var keyPairTable = output.Table[api.KeyPairCreated]{
	Name:    func(k api.KeyPairCreated) string { return k.Name },
	Columns: []string{"NAME", "FINGERPRINT", "TYPE", "PUBLIC_KEY"},
}

// KeyPairs holds the commands for key pairs.
func KeyPairs(a *cli.App) *cobra.Command {
	c := cli.Group("keypairs", "Create SSH key pairs", createKeyPair(a))
	c.Aliases = []string{"keypair"}
	c.Long = `Create SSH key pairs of yours. "resources keypairs" lists them, "resources delete-keypair" deletes them.`
	return c
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
