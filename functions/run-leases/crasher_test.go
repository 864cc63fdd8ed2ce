package runleases

import (
	"context"
	"errors"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
)

var errCrash = errors.New("the replica has died")

// crasher ends a replica right after one of its writes. A crash right before it is one after the write before.
type crasher struct {
	at       int             // the number of the write; 0 = none
	everyNew map[string]bool // not nil: after each write that is not in it, which it then is
	after    string          // the name of the write; "" = none, or it has died
	names    []string
}

func (c *crasher) wrote(name string) {
	c.names = append(c.names, name)
	isNew := c.everyNew != nil && !c.everyNew[name]
	if isNew {
		c.everyNew[name] = true
	}
	if isNew || len(c.names) == c.at || c.after == name {
		c.after = ""
		panic(errCrash)
	}
}

type crashingStore struct {
	leases.Store
	*crasher
}

func (s crashingStore) SaveStep(ctx context.Context, c domain.Claim, l *domain.Lease, d time.Duration) error {
	err := s.Store.SaveStep(ctx, c, l, d)
	s.wrote("save step " + string(l.Status))
	return err
}

func (s crashingStore) Save(ctx context.Context, c domain.Claim, l *domain.Lease) error {
	err := s.Store.Save(ctx, c, l)
	s.wrote("save " + string(l.Status))
	return err
}

func (s crashingStore) Finish(ctx context.Context, c domain.Claim, l *domain.Lease) error {
	err := s.Store.Finish(ctx, c, l)
	s.wrote("finish " + string(l.Status))
	return err
}

func (s crashingStore) Prepared(ctx context.Context, c domain.Claim, r domain.Reservation, nodes ...string) error {
	err := s.Store.Prepared(ctx, c, r, nodes...)
	s.wrote("prepared")
	return err
}

func (s crashingStore) Released(ctx context.Context, c domain.Claim, r domain.Reservation, nodes ...string) error {
	err := s.Store.Released(ctx, c, r, nodes...)
	s.wrote("released")
	return err
}

func (s crashingStore) Reallocate(
	ctx context.Context, c domain.Claim, l domain.Lease, r domain.Reservation, from string,
) (string, bool, error) {
	to, ok, err := s.Store.Reallocate(ctx, c, l, r, from)
	s.wrote("reallocated")
	return to, ok, err
}

type crashingActions struct {
	leases.Actions
	*crasher
}

func (a crashingActions) Create(ctx context.Context, d domain.DelegatedAction) (domain.DelegatedAction, error) {
	made, err := a.Actions.Create(ctx, d)
	a.wrote("action " + string(d.Request.Action))
	return made, err
}

func (a crashingActions) Abandon(ctx context.Context, d domain.DelegatedAction, p *domain.Problem) error {
	err := a.Actions.Abandon(ctx, d, p)
	a.wrote("abandon " + string(d.Request.Action))
	return err
}
