package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// trial tests settings against the systems that they configure.
type trial struct {
	*settings
	cfg   Config
	db    *postgres.DB     // nil: its settings are wrong
	cloud *openstack.Cloud // nil: its settings are wrong
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
	t.tryKeys(ctx, "SEAL", t.db.CallbackKeys)
	t.tryKeys(ctx, "CONNECTION", t.db.ConnectionKeys)
	t.tryKeys(ctx, "MANAGED", t.db.ManagedKeys)
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
	if err != nil && !t.reads("OS_PASSWORD") {
		return nil, nil //nolint:nilnil // clouds.yaml of a function without an account says only where the cloud is
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
func (t *trial) tryKeys(ctx context.Context, kind string, stored func(context.Context) ([]domain.KeyUse, error)) {
	public, private := kind+"_PUBLIC_KEY", kind+"_PRIVATE_KEY"
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
	used, err := stored(ctx)
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
func keysFit(s *settings) error {
	t := &trial{settings: s}
	for _, kind := range []string{"SEAL", "CONNECTION", "MANAGED"} {
		t.tryKeys(context.Background(), kind, nil)
		if detail, wrong := t.wrong[kind+"_PUBLIC_KEY"]; wrong {
			return fmt.Errorf("%s_PUBLIC_KEY %s", kind, detail)
		}
	}
	return nil
}
