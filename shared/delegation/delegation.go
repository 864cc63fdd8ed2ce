// Package delegation makes trusts with the caller's own token, so that one whose connection is never stored is revoked
// in any case.
package delegation

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config is for functions that make trusts.
type Config struct {
	// User id of the service account of run-connections, to which trusts are made; `cloudfnd trustee` prints it. When
	// empty, creating a trust fails with 501.
	Trustee string `env:"TRUSTEE_USER_ID"`
}

// trusteeID is the form of Keystone's user ids: 32 or 64 hexadecimal digits by default, other letters with other
// backends.
var trusteeID = regexp.MustCompile(`^[0-9A-Za-z_.@:-]*$`)

const maxTrusteeID = 255

// Validate rejects a Config that cannot work.
func (c Config) Validate() error {
	if len(c.Trustee) > maxTrusteeID || !trusteeID.MatchString(c.Trustee) {
		return fmt.Errorf("TRUSTEE_USER_ID is %q: it must be the id of a user, as `cloudfnd trustee` prints it",
			c.Trustee)
	}
	return nil
}

// Session is the caller's session in Keystone.
type Session interface {
	CreateTrust(
		ctx context.Context, who domain.Identity, trustee string, roles []string, after time.Time,
		announce func(end time.Time) (isFree bool, err error),
	) (domain.Trust, error)
	DeleteTrust(ctx context.Context, id string) error
}

// Store keeps what is known of trusts; postgres.Connections is one.
type Store interface {
	AnnounceTrust(context.Context, domain.OldTrust) (isFree bool, err error)
	ForgetTrust(ctx context.Context, projectID string, intent uuid.UUID) error
	DropTrust(context.Context, domain.OldTrust) error
	End(
		ctx context.Context, projectID string, id uuid.UUID,
		status domain.ConnectionStatus, reason string, revoked bool,
	) (ended bool, err error)
}

// Trusts makes trusts.
type Trusts struct {
	Store   Store
	Trustee string // the user to whom trusts are made; empty without one
	Roles   KindRoles
	Wake    func(functions ...string)
}

// CleanTimeout is for revoking what was delegated, also when the caller has hung up.
const CleanTimeout = 10 * time.Second

// Create creates a trust with the roles that the connection acts with. It announces the trust first: if this process
// dies before the connection is stored, run-connections finds the trust and revokes it.
func (t Trusts) Create(ctx context.Context, who domain.Identity, cloud Session, c *domain.Connection) error {
	intent, err := uuid.NewV7()
	if err != nil {
		return err
	}
	announce := func(end time.Time) (bool, error) {
		return t.Store.AnnounceTrust(ctx, domain.OldTrust{
			ID: intent, ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: who.UserID, ExpiresAt: end,
		})
	}
	trust, err := cloud.CreateTrust(ctx, who, t.Trustee, c.ActsAs.Roles, c.ExpiresAt.Add(domain.TrustSpare), announce)
	if err == nil {
		c.DelegationID, c.TrustExpiresAt, c.TrustIntent = trust.ID, trust.ExpiresAt, intent
		return nil
	}
	if isRejection(err) {
		c.TrustIntent = intent
		t.forget(ctx, *c)
	}
	return t.badTrustee(err)
}

// isRejection reports whether Keystone has certainly created no trust. After any other error run-connections checks.
func isRejection(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Invalid, apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Conflict:
		return true
	}
	return false
}

// badTrustee changes the error of a trustee that Keystone does not know: that is the operator's mistake, not the
// caller's.
func (t Trusts) badTrustee(err error) error {
	if e := apperr.As(err); e.Code != apperr.NotFound || !strings.Contains(e.Message, t.Trustee) {
		return err
	}
	slog.Error("TRUSTEE_USER_ID is not the id of a user: set it to what `cloudfnd trustee` prints",
		"trustee", t.Trustee)
	return apperr.Wrap(apperr.Unsupported, err,
		"trusts are not supported here, because TRUSTEE_USER_ID is not the id of a user: use an application credential")
}

// Abandon revokes a trust whose connection could not be stored, and ends the connection in case it was stored after
// all.
func (t Trusts) Abandon(ctx context.Context, cloud Session, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanTimeout)
	defer cancel()
	err := cloud.DeleteTrust(ctx, c.DelegationID)
	ended, endErr := t.Store.End(ctx, c.ProjectID, c.ID, domain.ConnectionDeleted, "it could not be stored", err == nil)
	slog.WarnContext(ctx, "a connection could not be stored",
		"connection_id", c.ID, "revoking_the_trust", err, "was_stored", ended, "ending_it", endErr)
	if err == nil {
		t.forget(ctx, c)
		return
	}
	t.Drop(ctx, c)
}

// Discard revokes the trust of a connection that is not stored. After an error that leaves open whether it was stored,
// run-connections finds out.
func (t Trusts) Discard(ctx context.Context, cloud Session, c domain.Connection, cause error) {
	if apperr.Retryable(cause) {
		t.Drop(ctx, c)
		return
	}
	t.Abandon(ctx, cloud, c)
}

// Drop lets run-connections revoke a trust unless a stored connection has it.
func (t Trusts) Drop(ctx context.Context, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanTimeout)
	defer cancel()
	slog.WarnContext(ctx, "a new trust is not used, and is revoked", "connection_id", c.ID)
	err := t.Store.DropTrust(ctx, domain.OldTrust{
		ID: c.TrustIntent, ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: c.UserID, TrustID: c.DelegationID,
		ExpiresAt: c.TrustExpiresAt,
	})
	if err != nil {
		slog.WarnContext(ctx, "a trust is revoked only when its announcement expires", "connection_id", c.ID,
			"error", err)
	}
	t.Wake("run-connections")
}

// forget deletes the announcement of a trust that Keystone does not have.
func (t Trusts) forget(ctx context.Context, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanTimeout)
	defer cancel()
	if err := t.Store.ForgetTrust(ctx, c.ProjectID, c.TrustIntent); err != nil {
		slog.WarnContext(ctx, "the announcement of an absent trust stays until it expires", "connection_id", c.ID,
			"error", err)
	}
}
