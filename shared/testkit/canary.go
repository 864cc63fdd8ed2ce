package testkit

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Every secret that tests give out or get is remembered here, and looked for wherever cloudfn could have left it: in each
// database before it is dropped, and in what each process has logged. There is no place where one may be.
var canaries = struct {
	sync.RWMutex
	known map[string]bool
	forms map[string][]form // by their first formKey bytes
}{known: map[string]bool{}, forms: map[string][]form{}}

// form is a secret as it may be written, and what kind of secret it is.
type form struct{ text, kind string }

const formKey = 7

func init() { //nolint:gochecknoinits // these are known before the first test begins
	remember("a Keystone token", "gAAAAAB") // how each Fernet token begins until 2038, also those that no test has seen
	remember("a private key in PEM", "PRIVATE KEY-----")
	remember("EVENT_KEY", EventKey)
	remember("SEAL_PRIVATE_KEY", SealPrivateKey)
	remember("CONNECTION_PRIVATE_KEY", ConnectionPrivateKey)
}

// Canary remembers a secret of the test's own, and gives it back.
func Canary(secret string) string { return remember("a test's secret", secret) }

// remember adds a secret in the forms in which it may be stored or logged: as it is, in hex (as a dump shows bytea), and in
// base64, where it may begin at any of three places.
func remember(kind, secret string) string {
	if len(secret) < formKey {
		panic("testkit: a secret that is this short would be found anywhere")
	}
	canaries.Lock()
	defer canaries.Unlock()
	if canaries.known[secret] {
		return secret
	}
	canaries.known[secret] = true
	texts := []string{secret, hex.EncodeToString([]byte(secret))}
	for skip := range 3 {
		whole := secret[skip:]
		texts = append(texts, base64.StdEncoding.EncodeToString([]byte(whole[:len(whole)/3*3])))
	}
	for _, text := range texts {
		if len(text) >= formKey {
			canaries.forms[text[:formKey]] = append(canaries.forms[text[:formKey]], form{text, kind})
		}
	}
	return secret
}

// betray says what kind of secret shows in a text, and behind what. It does not quote the secret.
func betray(text []byte) (where string, found bool) {
	canaries.RLock()
	defer canaries.RUnlock()
	for i := 0; i+formKey <= len(text); i++ {
		for _, f := range canaries.forms[string(text[i:i+formKey])] {
			if bytes.HasPrefix(text[i:], []byte(f.text)) {
				return fmt.Sprintf("%s shows behind %q", f.kind, text[max(0, i-60):i]), true
			}
		}
	}
	return "", false
}

// NoSecrets fails the test when a table of the database shows a secret that any test knows of.
func NoSecrets(t testing.TB, databaseURL string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		t.Errorf("looking for secrets: %v", err)
		return
	}
	defer conn.Close(ctx)
	rows, _ := conn.Query(ctx, "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'")
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Errorf("looking for secrets: %v", err)
		return
	}
	if len(tables) == 0 {
		return // it never got its schema
	}
	var all []string
	for _, table := range tables {
		all = append(all, "select '"+table+"', t::text from "+pgx.Identifier{table}.Sanitize()+" t")
	}
	shows := map[string]bool{} // one word for each table
	rows, _ = conn.Query(ctx, strings.Join(all, " union all "))
	for rows.Next() {
		table, row := string(rows.RawValues()[0]), rows.RawValues()[1]
		if where, found := betray(row); found && !shows[table] {
			shows[table] = true
			t.Errorf("the table %s holds a secret: %s", table, where)
		}
	}
	if err := rows.Err(); err != nil {
		t.Errorf("looking for secrets: %v", err)
	}
}

// NoSecretsIn fails the test when what a process has printed shows a secret that any test knows of.
func NoSecretsIn(t testing.TB, process string, log []byte) {
	t.Helper()
	if where, found := betray(log); found {
		t.Errorf("the log of %s holds a secret: %s", process, where)
	}
}

// ownLogs is where the processes within this one log to: all of them, because they share Go's default logger. What is written
// is looked at and forgotten.
type ownLogs struct {
	sync.Mutex
	finds []string
}

var inProcess ownLogs

// Write looks at one line.
func (l *ownLogs) Write(line []byte) (int, error) {
	if where, found := betray(line); found {
		l.Lock()
		l.finds = append(l.finds, where)
		l.Unlock()
	}
	return len(line), nil
}

// noSecrets fails the test when something was found since it was last asked, whoever logged it.
func (l *ownLogs) noSecrets(t testing.TB) {
	t.Helper()
	l.Lock()
	defer l.Unlock()
	for _, where := range slices.Compact(l.finds) {
		t.Errorf("the log of a process within this one holds a secret: %s", where)
	}
	l.finds = nil
}

// logs is for a process within this one. TEST_LOGS shows what it logs, for whoever looks for a fault.
func logs() io.Writer {
	if os.Getenv("TEST_LOGS") != "" {
		return io.MultiWriter(&inProcess, os.Stderr)
	}
	return &inProcess
}
