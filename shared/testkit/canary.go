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

// canaries are all secrets that tests use. Tests search for them wherever cloudfn could leak them: in each database
// before it is dropped, and in the log of each process.
var canaries = struct {
	sync.RWMutex
	known map[string]bool
	forms map[string][]form // by their first formKey bytes
}{known: map[string]bool{}, forms: map[string][]form{}}

// form is an encoding of a secret, and the kind of secret.
type form struct{ text, kind string }

const formKey = 7

const allTables = "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"

func init() { //nolint:gochecknoinits // these are known before the first test begins
	remember("a Keystone token", "gAAAAAB") // how each Fernet token begins until 2038, also those that no test has read
	remember("a private key in PEM", "PRIVATE KEY-----")
	remember("EVENT_KEY", EventKey)
	remember("SEAL_PRIVATE_KEY", SealPrivateKey)
	remember("CONNECTION_PRIVATE_KEY", ConnectionPrivateKey)
	remember("MANAGED_PRIVATE_KEY", ManagedPrivateKey)
}

// Canary adds a secret of the test's own, and returns it.
func Canary(secret string) string { return remember("a test's secret", secret) }

// remember adds a secret in the encodings in which it may be stored or logged: as it is, in hex (as a dump shows
// bytea), and in base64 at each of the three alignments.
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

// leak finds a secret in a text, and returns its kind and the text before it. It does not quote the secret.
func leak(text []byte) (where string, found bool) {
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

// NoSecrets fails the test if a table of the database holds a known secret.
func NoSecrets(t testing.TB, databaseURL string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		t.Errorf("searching for secrets: %v", err)
		return
	}
	defer conn.Close(ctx)
	rows, _ := conn.Query(ctx, allTables)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Errorf("searching for secrets: %v", err)
		return
	}
	if len(tables) == 0 { // the test did not migrate it
		return
	}
	var all []string
	for _, table := range tables {
		all = append(all, "select '"+table+"', t::text from "+pgx.Identifier{table}.Sanitize()+" t")
	}
	shows := map[string]bool{} // one report per table
	rows, _ = conn.Query(ctx, strings.Join(all, " union all "))
	for rows.Next() {
		table, row := string(rows.RawValues()[0]), rows.RawValues()[1]
		if where, found := leak(row); found && !shows[table] {
			shows[table] = true
			t.Errorf("the table %s holds a secret: %s", table, where)
		}
	}
	if err := rows.Err(); err != nil {
		t.Errorf("searching for secrets: %v", err)
	}
}

// NoSecretsIn fails the test if the output of a process holds a known secret.
func NoSecretsIn(t testing.TB, process string, log []byte) {
	t.Helper()
	if where, found := leak(log); found {
		t.Errorf("the log of %s holds a secret: %s", process, where)
	}
}

// ownLogs checks the logs of all functions in this process, which share Go's default logger. It keeps none of them.
type ownLogs struct {
	sync.Mutex
	finds []string
}

var inProcess ownLogs

// Write checks one line.
func (l *ownLogs) Write(line []byte) (int, error) {
	if where, found := leak(line); found {
		l.Lock()
		l.finds = append(l.finds, where)
		l.Unlock()
	}
	return len(line), nil
}

// noSecrets fails the test if a secret was logged since the last call, by whichever test.
func (l *ownLogs) noSecrets(t testing.TB) {
	t.Helper()
	l.Lock()
	defer l.Unlock()
	for _, where := range slices.Compact(l.finds) {
		t.Errorf("the log of a process within this one holds a secret: %s", where)
	}
	l.finds = nil
}

// logs returns the log of functions in this process. TEST_LOGS also prints it.
func logs() io.Writer {
	if os.Getenv("TEST_LOGS") != "" {
		return io.MultiWriter(&inProcess, os.Stderr)
	}
	return &inProcess
}
