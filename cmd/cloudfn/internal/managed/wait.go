package managed

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// errorTime is how long a resource may stay in error: what fails is tried again after some seconds.
const errorTime = time.Minute

// Target is a resource that a command waits for.
type Target struct {
	Reference
	Revision int  // that must be real; 0 = none: the resource must be deleted
	IsDone   bool // it is as it should be

	follows  bool // only what others changed: it is done when it has followed
	last     api.Managed
	inError  time.Time // since when; zero = it is not
	isFailed bool
}

// Await waits until each target is ready with its revision, or gone, and shows the progress on stderr. It waits for
// what follows them, too: servers that get a changed Configmap, and load balancers that get other servers.
func Await(ctx context.Context, a *cli.App, wait cli.Wait, targets []*Target) error {
	isFinal := func(all []*Target) bool {
		return !slices.ContainsFunc(all, func(t *Target) bool { return !t.isFinal() })
	}
	_, err := cli.Waiter[[]*Target]{
		Get: func(ctx context.Context) ([]*Target, error) {
			err := refresh(ctx, a, targets)
			if err == nil && isFinal(targets) {
				targets, err = withFollowers(ctx, a, targets)
			}
			return targets, err
		},
		Done: func(all []*Target) (bool, error) { return isFinal(all), nil },
		Rows: func(all []*Target) (rows []output.Row) {
			for _, t := range all {
				rows = append(rows, t.row())
			}
			return rows
		},
		Remaining: func([]*Target) string { return pending(targets) },
	}.Wait(ctx, a, wait, nil) // nothing is known of them before
	if err != nil {
		return err
	}
	return failures(targets)
}

// refresh reads the targets that are not done: one alone, several by the lists of their kinds.
func refresh(ctx context.Context, a *cli.App, targets []*Target) error {
	open := slices.DeleteFunc(slices.Clone(targets), (*Target).isFinal)
	kinds := map[string][]*Target{}
	for _, t := range open {
		kinds[t.Kind] = append(kinds[t.Kind], t)
	}
	for kind, some := range kinds {
		if len(some) == 1 {
			found, err := api.Get[api.Managed](ctx, a.API(), some[0].URL(), nil)
			if err != nil && !api.HasStatus(err, http.StatusNotFound) {
				return err
			}
			some[0].update(found.Value, err == nil, a.Now())
			continue
		}
		found, err := OfKind(kind).Find(ctx, a, nil, 0)
		if err != nil {
			return err
		}
		for _, t := range some {
			n := slices.IndexFunc(found, func(m api.Item[api.Managed]) bool { return m.Value.Name == t.Name })
			if n < 0 {
				t.update(api.Managed{}, false, a.Now())
				continue
			}
			t.update(found[n].Value, true, a.Now())
		}
	}
	return nil
}

// withFollowers adds the resources that follow a change of the targets. What is a target already is judged again:
// before the others were real, nothing showed that it would follow.
func withFollowers(ctx context.Context, a *cli.App, targets []*Target) ([]*Target, error) {
	changed := map[Reference]bool{}
	kinds := map[domain.Kind]bool{} // of what may follow
	for _, t := range targets {
		if t.Revision == 0 || !t.IsDone {
			continue
		}
		switch changed[t.Reference] = true; domain.Kind(t.Kind) {
		case domain.KindConfigmap:
			for _, kind := range domain.ServerKinds() {
				kinds[kind] = true
			}
		case domain.KindMachine, domain.KindDeployment, domain.KindPodDeployment:
			kinds[domain.KindBalancer] = true
		}
	}
	all := slices.Clone(targets)
	for kind := range kinds {
		found, err := OfKind(string(kind)).Find(ctx, a, nil, 0)
		if err != nil {
			return targets, err
		}
		for _, one := range found {
			if !slices.ContainsFunc(followed(one.Value), func(r Reference) bool { return changed[r] }) {
				continue
			}
			reference := Reference{string(kind), one.Value.Name}
			n := slices.IndexFunc(all, func(t *Target) bool { return t.Reference == reference })
			switch {
			case n < 0:
				all = append(all, &Target{Reference: reference, Revision: one.Value.Revision, follows: true})
				all[len(all)-1].update(one.Value, true, a.Now())
			case all[n].IsDone && all[n].Revision > 0:
				all[n].IsDone = false
				all[n].update(one.Value, true, a.Now())
			}
		}
	}
	return all, nil
}

// followed are the resources whose changes a resource follows: those in its spec. A load balancer that was never real
// has nothing to follow with.
func followed(m api.Managed) (all []Reference) {
	names := func(kind domain.Kind, field any) {
		list, _ := field.([]any)
		for _, name := range list {
			all = append(all, Reference{string(kind), fmt.Sprint(name)})
		}
	}
	if m.Spec["update"] == domain.UpdateReplace {
		names(domain.KindConfigmap, m.Spec["configmaps"])
	}
	listeners, _ := m.Spec["listeners"].([]any)
	for _, one := range listeners {
		if listener, ok := one.(map[string]any); ok && m.ObservedRevision > 0 {
			names(domain.KindDeployment, []any{listener["deployment"]})
			names(domain.KindPodDeployment, []any{listener["pods"]})
			names(domain.KindMachine, listener["machines"])
		}
	}
	return all
}

// has reports whether a condition of a resource has a status.
func has(m api.Managed, condition, status string) bool {
	return slices.ContainsFunc(m.Conditions, func(c api.Condition) bool {
		return string(c.Type) == condition && string(c.Status) == status
	})
}

// isFinal reports whether nothing is waited for any more.
func (t *Target) isFinal() bool { return t.IsDone || t.isFailed }

// update judges what a target is now.
func (t *Target) update(m api.Managed, isThere bool, now time.Time) {
	t.last = m
	status := domain.ManagedStatus(m.Status)
	isReal := status == domain.ManagedReady && !has(m, domain.ConditionUpdated, "False") ||
		t.follows && has(m, domain.ConditionUpdated, "True")
	switch {
	case !isThere:
		t.IsDone = t.Revision == 0 || t.follows
		t.isFailed = !t.IsDone
		return
	case t.Revision > 0 && isReal && m.ObservedRevision >= t.Revision && !has(m, domain.ConditionReady, "Unknown"):
		t.IsDone = true
		return
	case status != domain.ManagedError:
		t.inError = time.Time{}
		return
	case t.inError.IsZero():
		t.inError = now
	}
	t.isFailed = now.Sub(t.inError) >= errorTime
}

// Status is the last one that was read, or gone.
func (t *Target) Status() string { return cmp.Or(string(t.last.Status), "gone") }

func (t *Target) row() output.Row {
	note := t.last.StatusReason
	if len(t.last.Members) > 1 {
		note = fmt.Sprintf("%s %s", ready(t.last), note)
	}
	return output.Row{Name: t.String(), State: t.Status(), Note: note, IsFinal: t.isFinal()}
}

// pending says which targets are not done.
func pending(targets []*Target) string {
	open := slices.DeleteFunc(slices.Clone(targets), func(t *Target) bool { return t.IsDone })
	if len(open) == 0 {
		return "nothing"
	}
	text := open[0].state()
	if len(open) > 1 {
		text += fmt.Sprintf(", and %d more", len(open)-1)
	}
	return text
}

// state says what a target is now, and why.
func (t *Target) state() string {
	text := t.String() + " is " + t.Status()
	if reason := t.last.StatusReason; reason != "" {
		text += ": " + reason
	}
	return text
}

func failures(targets []*Target) error {
	failed := slices.DeleteFunc(slices.Clone(targets), func(t *Target) bool { return !t.isFailed })
	switch len(failed) {
	case 0:
		return nil
	case 1:
		return exit.Failedf("%s", failed[0].state())
	}
	return exit.Failedf("%s of %d resources failed: %s", strconv.Itoa(len(failed)), len(targets), pending(failed))
}
