package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

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
		if away := c.confirm(ctx); away != nil {
			return away
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
