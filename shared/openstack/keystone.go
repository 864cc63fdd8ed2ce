package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// token is a token's body, without its catalog.
type token struct {
	ExpiresAt keystoneTime `json:"expires_at"`
	User      struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"user"`
	Project *struct {
		ID     string `json:"id"`
		Name   string `json:"name"`
		Domain struct {
			ID string `json:"id"`
		} `json:"domain"`
	} `json:"project"`
	Domain *struct {
		ID string `json:"id"`
	} `json:"domain"`
	System     map[string]bool `json:"system"`
	Credential *struct {
		Restricted  bool                `json:"restricted"`
		AccessRules []domain.AccessRule `json:"access_rules"`
	} `json:"application_credential"`
	Roles []struct {
		Name string `json:"name"`
	} `json:"roles"`
}

func (t token) identity() domain.Identity {
	id := domain.Identity{
		UserID: t.User.ID, UserName: t.User.Name, ExpiresAt: t.ExpiresAt.Time, System: t.System["all"],
	}
	for _, r := range t.Roles {
		id.Roles = append(id.Roles, r.Name)
	}
	if t.Credential != nil {
		id.AccessRules = t.Credential.AccessRules
	}
	switch {
	case t.Project != nil:
		id.ProjectID, id.ProjectName, id.DomainID = t.Project.ID, t.Project.Name, t.Project.Domain.ID
	case t.Domain != nil:
		id.DomainID = t.Domain.ID
	}
	return id
}

// Validate reads whose a token is from Keystone, with that token itself (GET /v3/auth/tokens; Keystone's policy lets
// a token look at itself), so that it takes no secret of ours. Without `nocatalog` Keystone would also build
// and send its whole catalog, and gophercloud cannot request that.
//
// Keystone validates a token of an application credential with access rules only for who promises to enforce them
// (OpenStack-Identity-Access-Rules): auth does.
//
// Keystone answers 403 for a token of a trust with impersonation: it says that its user is the trustor, and Keystone
// compares that with the trustee. No other call tells whose it is, and Keystone exchanges no trust's token for another
// one.
func (c *Cloud) Validate(ctx context.Context, subject domain.Secret) (domain.Identity, error) {
	s := Session{cloud: c, token: subject}
	var body struct {
		Token token `json:"token"`
	}
	err := s.validation(ctx, "?nocatalog", &body)
	switch err = c.refusalOf(ctx, err); apperr.CodeOf(err) {
	case "":
	case apperr.NotFound:
		return domain.Identity{}, apperr.Wrap(apperr.Unauthenticated, err, "keystone does not know the token")
	case apperr.Forbidden:
		return domain.Identity{}, apperr.Wrap(apperr.Forbidden, err,
			"keystone does not let this token validate itself: tokens of trusts with impersonation are not supported")
	case apperr.Unauthenticated, apperr.Invalid:
		return domain.Identity{}, apperr.Wrap(apperr.Unauthenticated, err, "the token is invalid or expired")
	default:
		return domain.Identity{}, keystoneAway(err)
	}
	if body.Token.User.ID == "" {
		return domain.Identity{}, apperr.New(apperr.BadGateway, "keystone gave a token without a user")
	}
	return body.Token.identity(), nil
}

// validation reads what Keystone knows of the session's token.
func (s *Session) validation(ctx context.Context, query string, into any) error {
	keystone := s.keystone()
	_, err := keystone.Get(ctx, keystone.ServiceURL("auth", "tokens")+query, into, &gophercloud.RequestOpts{
		MoreHeaders: map[string]string{
			"X-Subject-Token": s.token.Reveal(), "OpenStack-Identity-Access-Rules": "1.0",
		},
		OkCodes: []int{http.StatusOK, http.StatusNonAuthoritativeInfo},
	})
	return err
}

// keystoneAway turns whatever went wrong at Keystone's side into "retry": it says nothing about the token.
func keystoneAway(err error) error {
	if code := apperr.CodeOf(err); code == apperr.ClientGone || code == apperr.RateLimited {
		return err
	}
	if _, says := errors.AsType[notKeystoneError](err); says {
		return err
	}
	e := apperr.Wrap(apperr.Unavailable, err, "keystone is not available")
	e.RetryAfter = defaultRetryAfter
	return e
}

// keystoneTime reads every form in which Keystone writes a moment: with a zone or without one (then it means UTC), and
// with microseconds or whole seconds. One token can have both forms: a Keystone worker writes the end of a token that
// an application credential cuts short without a zone when it made the token itself, and with one when it decoded the
// token. null is the zero time.
type keystoneTime struct{ time.Time }

// keystoneLayouts take fractions of a second, too, as time.Parse does.
var keystoneLayouts = []string{time.RFC3339, "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05", time.DateTime}

// UnmarshalJSON implements json.Unmarshaler.
func (k *keystoneTime) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	if text == nil {
		*k = keystoneTime{}
		return nil
	}
	for _, layout := range keystoneLayouts {
		if at, err := time.Parse(layout, *text); err == nil {
			*k = keystoneTime{at.UTC()}
			return nil
		}
	}
	return fmt.Errorf("time %q: expected a form such as 2006-01-02T15:04:05.000000Z or 2006-01-02T15:04:05", *text)
}

// confirmTTL is how long an address that answered as Keystone does is taken for Keystone's.
const confirmTTL = 5 * time.Minute

// Reachable reads Keystone's version document, without any token. It fails when what answers is not Keystone's API 3,
// as it does with a wrong path in OS_AUTH_URL.
func (c *Cloud) Reachable(ctx context.Context) error {
	s := Session{cloud: c}
	keystone := &gophercloud.ServiceClient{ProviderClient: s.provider(), Endpoint: c.identity}
	var document versionDocument
	_, err := keystone.Get(ctx, c.identity, &document, &gophercloud.RequestOpts{OkCodes: []int{
		http.StatusOK,
		http.StatusMultipleChoices,
	}})
	switch err = classify("keystone", err); apperr.CodeOf(err) {
	case apperr.Unavailable, apperr.Timeout, apperr.ClientGone, apperr.RateLimited:
		return err
	case "":
		if document.has("v3") {
			c.confirmed.Store(time.Now().UnixNano())
			return nil
		}
	}
	e := apperr.Wrap(apperr.Unavailable, notKeystoneError{c.identity, err},
		"keystone is not available: what answers at its address is not Keystone's API 3")
	e.RetryAfter = defaultRetryAfter
	return e
}

// confirm makes sure that a refusal came from Keystone, and not from another server at a wrong URL.
func (c *Cloud) confirm(ctx context.Context) error {
	if time.Since(time.Unix(0, c.confirmed.Load())) < confirmTTL {
		return nil
	}
	return c.Reachable(ctx)
}

// refusalOf classifies what Keystone answered to a token or a login. A refusal by another server, such as a proxy
// before a Keystone that restarts, is Unavailable.
func (c *Cloud) refusalOf(ctx context.Context, err error) error {
	answer := classify("keystone", err)
	switch apperr.CodeOf(answer) {
	case "":
		c.confirmed.Store(time.Now().UnixNano())
	case apperr.NotFound, apperr.Unauthenticated, apperr.Invalid, apperr.Forbidden:
		if unavailable := c.confirm(ctx); unavailable != nil {
			return unavailable
		}
		if !isKeystoneRefusal(err) {
			return keystoneAway(answer)
		}
	}
	return answer
}

// isKeystoneRefusal reports whether the body of a refusal is Keystone's own, which repeats the status.
func isKeystoneRefusal(err error) bool {
	refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	if pointed, isPointer := errors.AsType[*gophercloud.ErrUnexpectedResponseCode](err); isPointer {
		refused, ok = *pointed, true
	}
	var body struct {
		Error struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	return ok && json.Unmarshal(refused.Body, &body) == nil && body.Error.Code == refused.Actual
}

// notKeystoneError names the URL, for the log only.
type notKeystoneError struct {
	url   string
	cause error // nil when there was an answer with another document
}

func (e notKeystoneError) Error() string {
	return e.url + " is not Keystone's API 3 (" + e.answer() + "): correct OS_AUTH_URL, or auth_url"
}

func (e notKeystoneError) answer() string {
	if e.cause == nil {
		return "it answers with another document"
	}
	return rootCause(e.cause)
}

func (e notKeystoneError) Unwrap() error { return e.cause }

// versionDocument lists what a service's endpoint offers: one version, or several at an unversioned endpoint, which
// Keystone wraps in "values".
type versionDocument struct {
	Version  apiVersion
	Versions []apiVersion
}

type apiVersion struct {
	ID     string `json:"id"` // v2.1
	Status string `json:"status"`
	Links  []link `json:"links"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *versionDocument) UnmarshalJSON(text []byte) error {
	var raw struct {
		Version  apiVersion      `json:"version"`
		Versions json.RawMessage `json:"versions"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return err
	}
	d.Version = raw.Version
	if len(raw.Versions) == 0 || json.Unmarshal(raw.Versions, &d.Versions) == nil {
		return nil
	}
	var wrapped struct {
		Values []apiVersion `json:"values"`
	}
	err := json.Unmarshal(raw.Versions, &wrapped)
	d.Versions = wrapped.Values
	return err
}

// has reports whether the document offers a major version, such as v3.
func (d versionDocument) has(major string) bool {
	for _, v := range append(d.Versions, d.Version) {
		if v.ID == major || strings.HasPrefix(v.ID, major+".") {
			return true
		}
	}
	return false
}

func (s *Session) keystone() *gophercloud.ServiceClient {
	return &gophercloud.ServiceClient{ProviderClient: s.provider(), Endpoint: s.cloud.identity, Type: "identity"}
}

// CheckProject is NotFound when Keystone has no such project; it has a disabled one. Forbidden proves nothing: Keystone
// gives it to an account that may not read it, whether the project exists or not. A 404 that is not Keystone's own,
// such as that of a proxy before it, is Unavailable.
func (s *Session) CheckProject(ctx context.Context, id string) error {
	keystone := s.keystone()
	var body struct{}
	_, err := keystone.Get(ctx, keystone.ServiceURL("projects", url.PathEscape(id)), &body, nil)
	return s.confirmAbsent(ctx, err)
}

// confirmAbsent classifies what Keystone answered. NotFound is left of a 404 only if it is Keystone's own and Keystone
// is still reachable: any other 404, such as a proxy's, is Unavailable.
func (s *Session) confirmAbsent(ctx context.Context, err error) error {
	isKeystone := isKeystoneRefusal(err)
	if err = classify("keystone", err); apperr.CodeOf(err) != apperr.NotFound {
		return err
	}
	if !isKeystone {
		return keystoneAway(err)
	}
	if unavailable := s.cloud.Reachable(ctx); unavailable != nil {
		return unavailable
	}
	return err
}
