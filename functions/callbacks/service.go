package callbacks

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// store keeps callbacks. It takes secrets sealed, and gives none back.
type store = postgres.Callbacks

type service struct {
	store
	connections postgres.Connections

	tests, redeliveries postgres.RateLimit

	key   seal.PublicKey // of deliver-events
	guard *webhook.Guard // rejects URLs that no callback may have
	wake  func()         // wakes deliver-events
	most  int            // callbacks of a project
}

// Create stores a callback with the given secret, or with a new one when that is nil, and returns the secret. A
// callback of a connection gets events of the connection's project.
func (s service) Create(
	ctx context.Context, who domain.Identity, c domain.Callback, given *domain.Secret,
) (domain.Callback, domain.Secret, error) {
	if err := s.check(&c.URL, &c.Events); err != nil {
		return c, "", err
	}
	if c.ConnectionID != uuid.Nil {
		connection, _, err := s.connections.Usable(ctx, who, c.ConnectionID)
		if err != nil {
			return c, "", err
		}
		c.OfProject = connection.ProjectID
	}
	var isResumed bool
	if c.ID, _, isResumed = domain.AttemptFrom(ctx); isResumed {
		_, err := s.Get(ctx, c.ProjectID, c.ID)
		if apperr.CodeOf(err) != apperr.NotFound {
			return s.resume(ctx, c, given, err)
		}
	}
	c.Most = s.most
	secret, sealed, err := s.secret(c, given)
	if err != nil {
		return c, "", err
	}
	c.Secret = sealed
	stored, err := s.store.Create(ctx, c)
	if err != nil {
		return c, "", err
	}
	s.wake()
	return stored, secret, nil
}

// resume gives a callback, which an earlier attempt has stored, another secret, unless the caller has chosen it: no one
// can read the one that may not have reached the caller. Both sign for a while.
func (s service) resume(
	ctx context.Context, c domain.Callback, given *domain.Secret, failed error,
) (domain.Callback, domain.Secret, error) {
	if failed != nil {
		return c, "", failed
	}
	defer s.wake()
	if given != nil {
		stored, err := s.Get(ctx, c.ProjectID, c.ID)
		return stored, *given, err
	}
	return s.Rotate(ctx, c.ProjectID, c.ID, nil, defaultOverlap)
}

func (s service) secret(c domain.Callback, given *domain.Secret) (secret domain.Secret, sealed []byte, err error) {
	if given == nil {
		secret = webhook.NewSecret()
	} else if secret = *given; webhook.CheckSecret(secret) != nil {
		return "", nil, webhook.CheckSecret(secret)
	}
	sealed, err = s.key.Seal(c.SealedFor(), secret)
	return secret, sealed, err
}

// check validates the URL and the events. It sorts the events and removes duplicates.
func (s service) check(url *string, events *[]string) error {
	if url != nil {
		if err := s.guard.Check(*url); err != nil {
			return err
		}
	}
	if events == nil {
		return nil
	}
	if err := domain.CheckEventTypes("events", *events); err != nil {
		return err
	}
	slices.Sort(*events)
	*events = slices.Compact(*events)
	return nil
}

// Change changes a callback.
func (s service) Change(
	ctx context.Context, projectID string, id uuid.UUID, change domain.CallbackChange,
) (domain.Callback, error) {
	if err := s.check(change.URL, change.Events); err != nil {
		return domain.Callback{}, err
	}
	// Both may send a receiver a request immediately, as a test does.
	if change.URL != nil || change.Status != nil && *change.Status == domain.CallbackVerified {
		if _, err := s.Get(ctx, projectID, id); err != nil {
			return domain.Callback{}, err
		}
		if err := s.tests.Take(ctx, projectID, "this project"); err != nil {
			return domain.Callback{}, err
		}
	}
	change.Most = s.most
	changed, handshake, err := s.store.Change(ctx, projectID, id, change)
	if handshake && err == nil {
		s.wake()
	}
	return changed, err
}

// Rotate replaces a callback's secret by the given one, or a new one when that is nil. The old one signs too until the
// overlap has ended.
func (s service) Rotate(
	ctx context.Context, projectID string, id uuid.UUID, given *domain.Secret, overlap time.Duration,
) (domain.Callback, domain.Secret, error) {
	secret, sealed, err := s.secret(domain.Callback{ProjectID: projectID, ID: id}, given)
	if err != nil {
		return domain.Callback{}, "", err
	}
	changed, err := s.store.Rotate(ctx, projectID, id, sealed, overlap)
	return changed, secret, err
}

// Test sends the callback a test event.
func (s service) Test(ctx context.Context, projectID string, id uuid.UUID) (domain.Delivery, error) {
	exists := func() error { _, err := s.Get(ctx, projectID, id); return err }
	return s.deliver(ctx, projectID, id, s.tests, exists, func(made uuid.UUID) (domain.Delivery, error) {
		return s.store.Test(ctx, projectID, id, made)
	})
}

// Redeliver repeats a delivery.
func (s service) Redeliver(ctx context.Context, projectID string, id, delivery uuid.UUID) (domain.Delivery, error) {
	exists := func() error { _, err := s.Delivery(ctx, projectID, id, delivery); return err }
	return s.deliver(ctx, projectID, id, s.redeliveries, exists, func(made uuid.UUID) (domain.Delivery, error) {
		return s.store.Redeliver(ctx, projectID, id, delivery, made)
	})
}

// deliver makes a delivery, which counts for a limit if what it is of exists. A repeated request gets the delivery of
// its first attempt, and counts for no limit.
func (s service) deliver(
	ctx context.Context, projectID string, id uuid.UUID, limit postgres.RateLimit, exists func() error,
	deliver func(made uuid.UUID) (domain.Delivery, error),
) (domain.Delivery, error) {
	delivery, _, isResumed := domain.AttemptFrom(ctx)
	if isResumed {
		made, err := s.Delivery(ctx, projectID, id, delivery)
		if apperr.CodeOf(err) != apperr.NotFound {
			s.wake()
			return made, err
		}
	}
	if err := exists(); err != nil {
		return domain.Delivery{}, err
	}
	if err := limit.Take(ctx, projectID, "this project"); err != nil {
		return domain.Delivery{}, err
	}
	made, err := deliver(delivery)
	if err == nil {
		s.wake()
	}
	return made, err
}
