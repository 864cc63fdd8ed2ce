package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// check tests each setting of the function FUNCTION_TARGET, or of the daemon, and prints a line for each. It fails if
// one is wrong.
func check(ctx context.Context, env envconfig.Lookuper, out io.Writer, functions []function) error {
	target, _ := env.Lookup("FUNCTION_TARGET")
	targets, err := chosen(functions, target)
	if err != nil {
		return err
	}
	s := newSettings(env, targets)
	s.tryValues(ctx, targets)
	t, closeAll := prepare(ctx, env, s, functions)
	defer closeAll()
	t.run(ctx)
	t.tryRemotes(ctx)
	t.tryAddresses(ctx)
	return s.print(out)
}

// prepare opens what the tests need, as far as the values allow it.
func prepare(
	ctx context.Context, env envconfig.Lookuper, s *settings, functions []function,
) (t *trial, closeAll func()) {
	t = &trial{settings: s}
	faulty := map[string]bool{}
	for name := range s.wrong {
		faulty[name] = true
	}
	t.cfg, _ = read[Config](ctx, without{env, faulty}) // what is malformed is known already
	closeAll = func() {}
	p, err := newProcess(ctx, env, Texts{}, io.Discard, functions)
	if err == nil {
		t.cfg, t.db, t.cloud, t.works = p.cfg, p.db, p.cloud, true
		return t, func() { p.Close(context.WithoutCancel(ctx)) }
	}
	s.report(err)
	if t.db, err = postgres.Open(t.cfg.Postgres, nil); err == nil {
		closeAll = t.db.Close
	}
	if !s.good("OS_CLOUD", "OS_AUTH_URL", "OS_INTERFACE") {
		return t, closeAll
	}
	if t.cloud, err = openstack.New(t.cfg.OpenStack, openstack.Options{}); err != nil {
		s.report(err)
	}
	return t, closeAll
}

func (s *settings) print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(state, name, detail string) { _, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", state, name, detail) }
	if detail, wrong := s.wrong[""]; wrong {
		line("wrong", "(start)", detail)
	}
	for _, name := range s.names {
		wrong, untried := s.wrong[name], s.untried[name]
		switch {
		case wrong != "":
			line("wrong", name, wrong)
		case untried != "":
			line("untried", name, untried)
		case s.value(name) == "":
			line("unset", name, s.notes[name])
		default:
			line("ok", name, s.notes[name])
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if n := len(s.wrong); n > 0 {
		return fmt.Errorf("wrong settings: %d", n)
	}
	return nil
}

// settings are the environment variables of a process, and the results of their tests.
type settings struct {
	env   envconfig.Lookuper
	names []string // every variable that the process reads, in the order of docs/configuration.md

	wrong   map[string]string // by variable: what is wrong and what would be right; "" = no variable
	untried map[string]string // by variable: why it was not tested
	notes   map[string]string // by variable: the result of a test that passed
}

func newSettings(env envconfig.Lookuper, targets []function) *settings {
	s := &settings{
		env: filled{env}, wrong: map[string]string{}, untried: map[string]string{}, notes: map[string]string{},
	}
	all := names(reflect.TypeFor[Config]())
	for _, f := range targets {
		all = append(all, f.Variables...)
	}
	for _, name := range all {
		if !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
	}
	return s
}

func (s *settings) value(name string) string {
	value, _ := s.env.Lookup(name)
	return value
}

func (s *settings) reads(name string) bool { return slices.Contains(s.names, name) }

// fault records what is wrong with a variable. The first fault of a variable stays: later ones may follow from it.
func (s *settings) fault(name, detail string) {
	if _, known := s.wrong[name]; !known {
		s.wrong[name] = strings.ReplaceAll(detail, "\n", ": ")
	}
}

// note records what a test of a variable has shown.
func (s *settings) note(name, text string) {
	if s.notes[name] != "" {
		text = s.notes[name] + "; " + text
	}
	s.notes[name] = text
}

// report records an error with the name of a variable, and returns the name. A joined error has several.
func (s *settings) report(err error) (names []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			names = append(names, s.report(one)...)
		}
		return names
	}
	name, detail := s.variableIn(err.Error()), err.Error()
	if before, after, found := strings.Cut(detail, name); found && !strings.Contains(before, " ") {
		detail = strings.TrimLeft(after, ": ") // the line says the name already
	}
	s.fault(name, detail)
	return []string{name}
}

// variableIn returns the first variable in a text.
func (s *settings) variableIn(text string) (found string) {
	first := len(text)
	for _, name := range s.names {
		at := strings.Index(text, name)
		if at >= 0 && (at < first || at == first && len(name) > len(found)) {
			first, found = at, name
		}
	}
	return found
}

// tryValues loads each part of the configuration until it finds no more faults: it replaces a faulty variable by its
// default to find the next fault.
func (s *settings) tryValues(ctx context.Context, targets []function) {
	loaders := []func(context.Context, envconfig.Lookuper) error{faults[Config]}
	for _, f := range targets {
		loaders = append(loaders, f.load)
	}
	for _, load := range loaders {
		without := without{s.env, map[string]bool{}}
		for err := load(ctx, without); err != nil; err = load(ctx, without) {
			isNew := true
			for _, name := range s.report(err) {
				isNew = isNew && !without.names[name]
				without.names[name] = true
			}
			if !isNew {
				break
			}
		}
	}
}

// without hides variables.
type without struct {
	envconfig.Lookuper
	names map[string]bool
}

// Lookup implements envconfig.Lookuper.
func (w without) Lookup(name string) (string, bool) {
	if w.names[name] {
		return "", false
	}
	return w.Lookuper.Lookup(name)
}

// good reports whether none of the variables is wrong.
func (s *settings) good(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { _, wrong := s.wrong[name]; return wrong })
}

// trial tests settings against the systems that they configure.
type trial struct {
	*settings
	cfg   Config
	db    *postgres.DB     // nil: its settings are wrong
	cloud *openstack.Cloud // nil: its settings are wrong
	works bool             // the process can start
}

// trialTimeout bounds all tests together.
const trialTimeout = 20 * time.Second

func (t *trial) run(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	if t.db != nil {
		t.tryDatabase(ctx)
	}
	if t.cloud != nil {
		t.tryCloud(ctx)
	}
	for _, kind := range keyKinds {
		t.tryKeys(ctx, kind)
	}
}

func (t *trial) tryDatabase(ctx context.Context) {
	if err := t.db.Check(ctx); err != nil {
		t.fault("DATABASE_URL", err.Error()+": correct it, bring Postgres up, or run `cloudfnd migrate`")
		return
	}
	t.notes["DATABASE_URL"] = "it answers, and its schema is new enough"
}

// tryCloud tests Keystone without an account, and the rest with the account of the function or the environment.
func (t *trial) tryCloud(ctx context.Context) {
	account, err := t.account(ctx)
	if err != nil {
		t.report(err)
	}
	for _, warning := range t.cloud.Warnings() {
		t.note("OS_CLOUD", warning)
	}
	t.noteIgnored()
	session, wrong, notes := t.cloud.Check(ctx, t.cfg.OpenStack, account)
	for _, f := range wrong {
		t.fault(f.Variable, f.Detail)
	}
	for _, f := range notes {
		t.note(f.Variable, f.Detail)
	}
	if session != nil {
		t.note(account.Variable(), account.String()+" may log in")
		t.tryTrustee(session)
		t.tryLists(ctx, session)
		return
	}
	reason := "needs a service account, which this function does not have"
	if account != nil {
		reason = "needs a login"
	}
	for _, name := range []string{
		"OS_REGION_NAME", "OS_INTERFACE", "TRUSTEE_USER_ID", "ALLOWED_PROJECTS", "ALLOWED_DOMAINS",
		"NODES_PROJECT_ID",
	} {
		if t.value(name) != "" && t.notes[name] == "" {
			t.untried[name] = reason
		}
	}
}

// account returns the service account of the environment; nil = no account.
func (t *trial) account(ctx context.Context) (*openstack.Account, error) {
	credentials, err := load[openstack.Credentials](ctx, t.env)
	if err != nil {
		return nil, err
	}
	if !t.reads("OS_PASSWORD") && !credentials.HasSecret() && t.value("OS_CLOUD") == "" {
		return nil, nil //nolint:nilnil // without an account, none is tried
	}
	account, err := t.cloud.Account(t.cfg.OpenStack, credentials)
	if err != nil && (t.works || !t.reads("OS_PASSWORD")) {
		return nil, nil //nolint:nilnil // the function needs no account, and clouds.yaml says only where the cloud is
	}
	return account, err
}

// noteIgnored notes the variables that OS_CLOUD makes useless.
func (t *trial) noteIgnored() {
	read := []string{"OS_CLOUD", "OS_CLIENT_CONFIG_FILE", "OS_CLIENT_SECURE_FILE", "OS_PASSWORD"}
	for _, name := range t.names {
		if t.value("OS_CLOUD") != "" && strings.HasPrefix(name, "OS_") && t.value(name) != "" &&
			!slices.Contains(read, name) {
			t.note(name, "ignored, because OS_CLOUD is set")
		}
	}
}

func (t *trial) tryTrustee(session *openstack.Session) {
	trustee := t.value("TRUSTEE_USER_ID")
	switch {
	case trustee == "":
	case trustee == session.UserID():
		t.notes["TRUSTEE_USER_ID"] = "it is the account's"
	case t.cfg.Target != "" && t.cfg.Target != "run-connections":
		t.untried["TRUSTEE_USER_ID"] = "needs the account of run-connections: compare it with what `cloudfnd " +
			"trustee` prints there"
	default:
		t.fault("TRUSTEE_USER_ID",
			fmt.Sprintf("is %q, but the account's id is %q: set it to that, as `cloudfnd trustee` prints it",
				trustee, session.UserID()))
	}
}

// tryLists checks that each allowed project and domain exists.
func (t *trial) tryLists(ctx context.Context, session *openstack.Session) {
	for name, list := range map[string]struct {
		kind string
		ids  []string
	}{
		"ALLOWED_PROJECTS": {"projects", t.cfg.Callers.AllowedProjects},
		"ALLOWED_DOMAINS":  {"domains", t.cfg.Callers.AllowedDomains},
		"NODES_PROJECT_ID": {"projects", strings.Fields(t.value("NODES_PROJECT_ID"))},
	} {
		if !t.reads(name) {
			continue
		}
		for _, id := range list.ids {
			switch err := session.Exists(ctx, list.kind, id); apperr.CodeOf(err) {
			case "":
			case apperr.NotFound:
				t.fault(name, fmt.Sprintf("Keystone has no %s with the id %q: correct the id (not the name)",
					strings.TrimSuffix(list.kind, "s"), id))
			default:
				t.untried[name] = "the account may not read " + list.kind + " in Keystone"
			}
		}
	}
}

// tryKeys checks that both keys of a pair match, and that the private one can unseal what is stored.
func (t *trial) tryKeys(ctx context.Context, kind keyKind) {
	public, private := kind.prefix+"_PUBLIC_KEY", kind.prefix+"_PRIVATE_KEY"
	sealer, sealErr := seal.ParsePublicKey(t.value(public))
	keys, openErr := seal.ParsePrivateKeys(domain.Secret(t.value(private)))
	if sealErr == nil {
		t.notes[public] = "key " + sealer.ID()
	}
	if openErr != nil {
		if sealErr == nil && t.reads(public) {
			t.untried[public] = "needs " + private + ": check there that it has the key " + sealer.ID()
		}
		return
	}
	t.notes[private] = "key " + strings.Join(keys.IDs(), ", ")
	if sealErr == nil && !slices.Contains(keys.IDs(), sealer.ID()) {
		t.fault(public, fmt.Sprintf("is the key %s, but %s has %s: set both to one pair that `cloudfnd keys` prints",
			sealer.ID(), private, strings.Join(keys.IDs(), ", ")))
	}
	if t.db == nil || !t.reads(private) || !t.good("DATABASE_URL") {
		return
	}
	used, err := kind.stored(t.db, ctx)
	for _, use := range used {
		if err == nil && !slices.Contains(keys.IDs(), use.Key) {
			t.fault(private,
				fmt.Sprintf("has %s, but stored secrets are sealed to the key %s: add that key behind a comma",
					strings.Join(keys.IDs(), ", "), use.Key))
		}
	}
}

// tryRemotes reads the version document of each other cloud's Keystone.
func (t *trial) tryRemotes(ctx context.Context) {
	const name = "CONNECTION_CLOUDS"
	cfg, err := load[openstack.RemotesConfig](ctx, t.env)
	if t.cloud == nil || !t.reads(name) || err != nil {
		return
	}
	if err := t.cloud.AddRemotes(cfg); err != nil {
		t.report(err)
		return
	}
	for n, authURL := range cfg.URLs() {
		if err := t.cloud.At(authURL, "").Reachable(ctx); err != nil {
			t.fault(name, fmt.Sprintf("entry %d, %s: %s", n+1, authURL, err))
			continue
		}
		t.notes[name] = "every entry answers"
	}
}

// tryAddresses connects to the hosts of the other systems, and sends nothing.
func (t *trial) tryAddresses(ctx context.Context) {
	for _, name := range []string{"WAKE_URL", "CONSOLE_UPSTREAM", "K_SINK", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if !t.reads(name) || t.value(name) == "" || !t.good(name) {
			continue
		}
		if err := dial(ctx, strings.ReplaceAll(t.value(name), placeholder, "stats")); err != nil {
			t.fault(name, fmt.Sprintf("its host cannot be reached (%s): correct the URL, or bring up what is there",
				err))
			continue
		}
		t.notes[name] = "its host answers"
	}
}

const dialTimeout = 5 * time.Second

// dial connects to a URL's host. Its errors do not quote the URL, which may hold a password.
func dial(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return errors.New("it is not a URL")
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	return conn.Close()
}

// keysFit fails if both keys of a pair are set and do not match.
func (s *settings) keysFit(ctx context.Context) error {
	t := &trial{settings: s}
	for _, kind := range keyKinds {
		t.tryKeys(ctx, kind)
		if detail, wrong := t.wrong[kind.prefix+"_PUBLIC_KEY"]; wrong {
			return fmt.Errorf("%s_PUBLIC_KEY %s", kind.prefix, detail)
		}
	}
	return nil
}

// tryAtStart logs the settings of the daemon that do not work: once, because a changed setting takes a restart.
func (p *Process) tryAtStart(ctx context.Context) {
	t := &trial{settings: p.settings, cfg: p.cfg, db: p.db, cloud: p.cloud, works: true}
	t.run(ctx)
	for _, name := range t.names {
		if detail, wrong := t.wrong[name]; wrong && ctx.Err() == nil {
			slog.WarnContext(ctx, "a setting does not work", "variable", name, "detail", detail)
		}
	}
}
