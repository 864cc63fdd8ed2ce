// Package clitest has an API that a test makes up, for what a real one does only by chance.
package clitest

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// New is an App whose command runs, with an API that answers by serve. It prints a table to the first buffer, and
// notes to the second one.
func New(t *testing.T, serve http.HandlerFunc) (a *cli.App, out, notes *bytes.Buffer) {
	t.Helper()
	out, notes = new(bytes.Buffer), new(bytes.Buffer)
	a = &cli.App{Name: "cloudfn", Out: out, Err: notes, Now: time.Now, Print: output.Printer{Out: out, Format: "table"}}
	a.Begin()
	if serve != nil {
		server := httptest.NewServer(serve)
		t.Cleanup(server.Close)
		token := func(context.Context, bool) (domain.Secret, error) { return "token", nil }
		a.Client = api.New(api.Options{URL: server.URL, Token: token, NameField: a.FlagOf})
	}
	return a, out, notes
}
