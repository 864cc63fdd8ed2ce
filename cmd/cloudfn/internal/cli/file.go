package cli

import (
	"context"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/files"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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

// Secret reads the secret of --secret-file, or asks for it at a terminal, and adds it to a request.
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
