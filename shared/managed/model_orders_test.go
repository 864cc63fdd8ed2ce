package managed

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// saveOrder writes something of a server's order. Calls beside each other are distinguished by the server's name.
func (s storeView) saveOrder(what, server string, do func() error) error {
	return s.write(what+" "+server, saveFaults[:len(saveFaults)-1], do)
}

func (s storeView) Place(_ context.Context, order domain.Order, claimFor time.Duration) (c domain.Claim, err error) {
	return c, s.saveOrder("order", order.Instances[0].Name, func() error {
		o, isKnown := s.orders[order.ID]
		if !isKnown {
			order.Status, order.CreatedAt = domain.OrderRunning, time.Now()
			order.Instances = slices.Clone(order.Instances)
			order.Instances[0].Origin, order.Instances[0].CreatedAt = domain.OriginLaunched, time.Now()
			order.Instances[0].OrderID = order.ID
			o = &modelOrder{Order: order}
			s.orders[order.ID] = o
		}
		if isKnown && (o.Instances[0].Decided() || time.Now().Before(o.claimed)) {
			return nil
		}
		c = domain.NewClaim()
		c.Acquired, c.Fresh, c.At = true, !isKnown, time.Now()
		o.claim, o.claimed = c.ID, time.Now().Add(claimFor)
		return nil
	})
}

func (s storeView) Claim(ctx context.Context, order domain.Order, d time.Duration) (domain.Claim, error) {
	return s.Place(ctx, order, d)
}

// underClaim writes something of an order under its claim.
func (s storeView) underClaim(
	what string, order domain.Order, claim domain.Claim, do func(o *modelOrder) error,
) error {
	return s.saveOrder(what, order.Instances[0].Name, func() error {
		o := s.orders[order.ID]
		if o == nil || o.claim != claim.ID || time.Now().After(o.claimed) {
			return domain.ErrFenced
		}
		return do(o)
	})
}

func (s storeView) Renew(_ context.Context, order domain.Order, claim domain.Claim, d time.Duration) error {
	return s.underClaim("renew", order, claim, func(o *modelOrder) error {
		o.claimed = time.Now().Add(d)
		return nil
	})
}

func (s storeView) Release(_ context.Context, order domain.Order, claim domain.Claim) error {
	return s.saveOrder("release order", order.Instances[0].Name, func() error {
		if o := s.orders[order.ID]; o != nil && o.claim == claim.ID {
			o.claimed = time.Time{}
		}
		return nil
	})
}

func (s storeView) BeginCall(
	_ context.Context, order domain.Order, claim domain.Claim, call domain.CreateCall, claimFor, fence time.Duration,
) error {
	return s.underClaim("call", order, claim, func(o *modelOrder) error {
		now := time.Now()
		if o.Instances[0].Decided() || slices.ContainsFunc(o.Calls, func(c domain.CreateCall) bool {
			return c.EndedAt.IsZero() && now.Before(c.Until)
		}) {
			return domain.ErrCallOpen
		}
		o.claimed, call.BeganAt, call.Until = now.Add(claimFor), now, now.Add(fence)
		o.Calls = append(o.Calls, call)
		return nil
	})
}

func (s storeView) EndCall(_ context.Context, order domain.Order, call domain.CreateCall) error {
	return s.saveOrder("end call", order.Instances[0].Name, func() error {
		s.orders[order.ID].endCall(call.ID, "")
		return nil
	})
}

func (o *modelOrder) endCall(id uuid.UUID, server string) {
	for n := range o.Calls {
		if c := &o.Calls[n]; c.ID == id && c.EndedAt.IsZero() {
			c.EndedAt, c.ServerID = time.Now(), server
		}
	}
}

func (s storeView) MarkDuplicate(
	_ context.Context, order domain.Order, call domain.CreateCall, serverID string,
) (isMarked bool, err error) {
	return isMarked, s.saveOrder("duplicate", order.Instances[0].Name, func() error {
		o := s.orders[order.ID]
		for _, c := range o.Calls {
			if c.ID == call.ID && o.Status == domain.OrderRunning && o.Instances[0].ServerID != serverID {
				isMarked = c.ServerID == serverID || c.ServerID == "" && c.EndedAt.IsZero()
			}
		}
		if isMarked {
			o.endCall(call.ID, serverID)
		}
		return nil
	})
}

func (s storeView) PublishUnexpected(context.Context, domain.Instance, domain.Server) (bool, error) {
	return false, nil
}

func (s storeView) Finalize(_ context.Context, order domain.Order) error {
	return s.saveOrder("finalize", order.Instances[0].Name, func() error {
		if o := s.orders[order.ID]; o != nil && o.Status == domain.OrderRunning {
			o.Status = order.Status
		}
		return nil
	})
}

// nameOf is the name of an order's server; "" = it is not placed.
func (s storeView) nameOf(id uuid.UUID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.orders[id]; o != nil {
		return o.Instances[0].Name
	}
	return ""
}

func (s storeView) Get(_ context.Context, _ string, id uuid.UUID) (order domain.Order, err error) {
	return order, s.saveOrder("read order", s.nameOf(id), func() error {
		o := s.orders[id]
		if o == nil {
			return apperr.New(apperr.NotFound, "there is no order %s", id)
		}
		order = o.Order
		order.ReadAt, order.Calls = time.Now(), slices.Clone(order.Calls)
		order.Instances = slices.Clone(order.Instances)
		return nil
	})
}

// Decide stores what Nova said, and is fenced by the claim alone, as in Postgres.
// RecordVolumes is never called, as SetVolumes is not.
func (s storeView) RecordVolumes(context.Context, domain.Order, domain.Claim, uuid.UUID) error {
	return errors.New("a managed server needs no step for its volumes")
}

// RecordGroups is never called, as SetNetworkGroups is not.
func (s storeView) RecordGroups(context.Context, domain.Order, domain.Claim, uuid.UUID, domain.PortGroups) error {
	return errors.New("a managed server needs no step for its security groups")
}

// RecordFloatingIP is never called, as EnsureFloatingIP is not.
func (s storeView) RecordFloatingIP(
	context.Context, domain.Order, domain.Claim, uuid.UUID, domain.InstanceFloatingIP,
) error {
	return errors.New("a managed server has no floating IP")
}

func (s storeView) Decide(_ context.Context, claim domain.Claim, i domain.Instance) error {
	return s.saveOrder("decide", i.Name, func() error {
		o := s.orderOf(i.ID)
		if o.claim != claim.ID {
			return domain.ErrFenced
		}
		if !o.Instances[0].Decided() {
			s.setInstance(o, i)
		}
		return nil
	})
}

// setInstance stores an instance. Its resource is due when it changes, as by the trigger wake_managed.
func (s storeView) setInstance(o *modelOrder, i domain.Instance) {
	before := o.Instances[0]
	if i.CallID != uuid.Nil {
		o.endCall(i.CallID, i.ServerID)
	}
	i.DeleteTries, i.DeleteTriedAt, i.OrderID = before.DeleteTries, before.DeleteTriedAt, o.ID
	i.UpdatedAt = time.Now()
	o.Instances[0] = i
	member := s.members[i.ID]
	m := s.byID(member.ManagedID)
	isNews := before.State != i.State || before.RawStatus != i.RawStatus || before.Name != i.Name ||
		before.ServerID != i.ServerID || !before.NovaAt.Equal(i.NovaAt)
	if isNews && m != nil && (member.Status == domain.MemberReady || member.Status == domain.MemberError) {
		m.NextAt, s.project.DueAt, s.isWoken = time.Now(), time.Now(), true
	}
}

// orderOf returns the order of an instance.
func (s *modelStore) orderOf(instance uuid.UUID) *modelOrder {
	for _, o := range s.orders {
		if o.Instances[0].ID == instance {
			return o
		}
	}
	return nil
}

// modelInstances is the store of instances.
type modelInstances struct{ storeView }

func (s modelInstances) Change(_ context.Context, known []domain.Instance) (int, error) {
	return 0, s.saveOrder("instance", known[0].Name, func() error {
		for _, i := range known {
			for _, o := range s.orders {
				own := o.Instances[0]
				if own.ID == i.ID && !own.SeenAt.After(i.SeenAt) && own.State != domain.InstanceDeleted {
					s.setInstance(o, i)
				}
			}
		}
		return nil
	})
}

func (s modelInstances) Find(_ context.Context, _ domain.Filter, ids []string) (found []domain.Instance, err error) {
	return found, s.saveOrder("read instance", ids[0], func() error {
		for _, o := range s.orders {
			if i := o.Instances[0]; slices.Contains(ids, i.ID.String()) {
				found = append(found, i)
			}
		}
		return nil
	})
}

func (modelInstances) RecordDeleteAttempt(context.Context, domain.Instance, time.Time) error {
	return nil
}

func (modelInstances) SetSize(context.Context, domain.Instance) error { return nil }

func (modelInstances) Connect(context.Context, domain.Instance) (i domain.Instance, made bool, err error) {
	return i, false, apperr.New(apperr.Unsupported, "the model connects nothing")
}
