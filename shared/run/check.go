package run

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
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
		t.cfg, t.db, t.cloud = p.cfg, p.db, p.cloud
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
