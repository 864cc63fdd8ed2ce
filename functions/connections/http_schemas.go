package connections

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// describe says what the types' tags cannot.
func describe(api huma.API) {
	httpx.Enum[domain.Permission](api, "Permission", domain.Permissions()...)
	httpx.Enum[domain.ConnectionKind](api, "ConnectionKind", domain.TrustConnection, domain.CredentialConnection)
	httpx.Enum[domain.ConnectionStatus](api, "ConnectionStatus", domain.ConnectionStatuses()...)
	httpx.Enum[domain.ConnectionOf](api, "ConnectionOf", domain.ConnectionsOf()...)
	httpx.Enum[domain.Revocation](api, "Revocation", domain.RevocationPending, domain.RevocationDone)
	httpx.Enum[domain.RequestStatus](api, "ConnectionRequestStatus", domain.RequestStatuses()...)
	httpx.Enum[domain.Grantee](api, "Grantee", domain.GranteeUser, domain.GranteeProject)
	for _, t := range []reflect.Type{reflect.TypeFor[QuotaRequest](), reflect.TypeFor[LimitsRequest]()} {
		schemas := api.OpenAPI().Components.Schemas
		// a tag makes only text and numbers nullable
		schemas.SchemaFromRef(schemas.Schema(t, true, "").Ref).Nullable = true
	}
}

// maxText bounds the connection's name, and ids and names of Keystone.
const maxText = 255

// plainText is a name or an id: text without control characters.
type plainText string

// Schema implements huma.SchemaProvider.
func (plainText) Schema(huma.Registry) *huma.Schema {
	most := maxText
	return &huma.Schema{
		Type: huma.TypeString, MaxLength: &most, Pattern: `^\P{Cc}*$`,
		PatternDescription: "text without control characters",
	}
}

// displayText is plainText by which people decide. So it may not hold characters that make it look like another text,
// either.
type displayText string

// Schema implements huma.SchemaProvider.
func (displayText) Schema(r huma.Registry) *huma.Schema { return plainText("").Schema(r) }

// Resolve implements huma.ResolverWithPath.
func (t *displayText) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	isBidi := func(c rune) bool { return unicode.Is(unicode.Bidi_Control, c) }
	if n := strings.IndexFunc(string(*t), isBidi); n >= 0 {
		detail := fmt.Sprintf("has a character at byte %d that changes the direction of the text: leave it out", n)
		return []error{&huma.ErrorDetail{Location: at.String(), Message: detail}}
	}
	return nil
}

// duration is how long a connection lasts, or may be idle.
type duration string

const (
	minDuration = time.Hour
	maxDuration = 8784 * time.Hour // a leap year
)

// value is zero for a wrong duration, and an absent one.
func (d duration) value() time.Duration {
	value, err := time.ParseDuration(string(d))
	if err != nil || value < minDuration || value > maxDuration {
		return 0
	}
	return value
}

// Resolve implements huma.ResolverWithPath.
func (d *duration) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	if d.value() == 0 {
		return []error{&huma.ErrorDetail{Location: at.String(), Message: mustBeDuration}}
	}
	return nil
}

const mustBeDuration = "must be 1h to 8784h, such as 24h or 1h30m"

// UsableEntry is one entry of usable_by: an id, or a name.
type UsableEntry struct {
	id    string
	name  *UsableName
	isBad bool // it is neither
}

// UsableName is a user or a project by name.
type UsableName struct {
	User    *plainText `json:"user,omitempty" minLength:"1"`
	Project *plainText `json:"project,omitempty" minLength:"1"`
	Domain  *plainText `json:"domain,omitempty" minLength:"1"`

	field string // where it is in the request
}

// Schema implements huma.SchemaProvider. What an entry may be is in http.yaml: huma's own check would only say that it
// is wrong.
func (UsableEntry) Schema(r huma.Registry) *huma.Schema {
	r.Schema(reflect.TypeFor[UsableName](), true, "")
	httpx.SharedSchema(r, "KeystoneId", huma.Schema{Type: huma.TypeString})
	return httpx.SharedSchema(r, "UsableEntry", huma.Schema{})
}

// UnmarshalJSON implements json.Unmarshaler. Resolve reports what is wrong with an entry, with its place.
func (e *UsableEntry) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &e.id)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	e.isBad = text[0] != '{' || d.Decode(&e.name) != nil
	return nil
}

// Resolve implements huma.ResolverWithPath.
func (e *UsableEntry) Resolve(ctx huma.Context, at *huma.PathBuffer) []error {
	fault := func(detail string) []error { return []error{&huma.ErrorDetail{Location: at.String(), Message: detail}} }
	switch n := e.name; {
	case e.isBad:
		return fault(`must be an id, {"user": NAME, "domain": DOMAIN} or {"project": NAME, "domain": DOMAIN}`)
	case n == nil && !isKeystoneID(auth.CallerOrNone(ctx.Context()), e.id):
		return fault(badID(e.id))
	case n == nil:
		return nil
	case n.User == nil && n.Project == nil:
		return fault("must have user or project, a name")
	case n.User != nil && n.Project != nil:
		return fault("has user and project: must have one of them")
	default:
		for part, text := range map[string]*plainText{"user": n.User, "project": n.Project, "domain": n.Domain} {
			detail := ""
			if text != nil && !isName(string(*text)) {
				detail = "must be a name of 1 to 255 characters, without control characters"
			} else if text != nil {
				detail = domain.Unstorable(string(*text))
			}
			if detail != "" {
				at.Push(part)
				defer at.Pop()
				return fault(detail)
			}
		}
		return nil
	}
}

// maxNames bounds the look-ups in Keystone that one request causes.
const maxNames = 20

func checkUsable(entries []UsableEntry) []error {
	if _, names := split(entries); len(names) > maxNames {
		return []error{apperr.InvalidField("usable_by",
			fmt.Sprintf("has %d names: must have %d at most, and the rest as ids", len(names), maxNames))}
	}
	return nil
}

// split gives the ids, each once, and the names.
func split(entries []UsableEntry) (ids []string, names []UsableName) {
	ids = []string{}
	for n, e := range entries {
		switch {
		case e.name != nil:
			e.name.field = fmt.Sprintf("usable_by[%d]", n)
			names = append(names, *e.name)
		case !slices.Contains(ids, e.id):
			ids = append(ids, e.id)
		}
	}
	return ids, names
}

// kind reports whether the name is a user's or a project's.
func (n UsableName) kind() (kind, name string) {
	if n.User != nil {
		return "user", string(*n.User)
	}
	return "project", string(*n.Project)
}

var (
	// keystoneID is the form of the ids that Keystone itself makes: 32 digits for its own, 64 for those of LDAP or a
	// federation.
	keystoneID = regexp.MustCompile(`^([0-9a-f]{32}|[0-9a-f]{64})$`)
	// otherID is the form of ids that another backend may have.
	otherID = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)
)

// isName reports whether Keystone may have a user, a project or a domain of that name.
func isName(text string) bool {
	n := utf8.RuneCountInString(text)
	return n > 0 && n <= 255 && !strings.ContainsFunc(text, unicode.IsControl)
}

// isKeystoneID reports whether a text has the form of an id of this Keystone: the form of the caller's ids, if those
// are not of Keystone's own form.
func isKeystoneID(who domain.Identity, text string) bool {
	isOwn := keystoneID.MatchString(who.UserID) && keystoneID.MatchString(who.ProjectID)
	return keystoneID.MatchString(text) || !isOwn && otherID.MatchString(text)
}

// badID rejects what may be a name. No one could use a connection with it, and later a user that gets that text
// as an id.
func badID(text string) string {
	name := text
	if !otherID.MatchString(name) {
		name = "NAME"
	}
	return fmt.Sprintf(
		"%.100q is not the id of a user or a project (32 or 64 digits 0-9 and a-f): "+
			"`openstack user show -f value -c id %s` prints that of a user, "+
			"`openstack project show -f value -c id %s` that of a project; "+
			"a name is written as {\"user\": %.100[1]q} or {\"project\": %.100[1]q}, "+
			"with \"domain\" for another domain than your project's", text, name, name)
}

// ChangeConnection is the body of PATCH /v1/connections/{id}, a JSON merge patch (RFC 7396): what is absent stays, null
// removes a limit.
type ChangeConnection struct {
	Name      *plainText  `json:"name,omitempty"`
	ExpiresAt *httpx.Time `json:"expires_at,omitempty"`

	IdleTimeout httpx.Patch[duration] `json:"idle_timeout,omitzero" nullable:"true" doc:"1h to 8784h. Null removes it."`

	Quota    httpx.Patch[QuotaRequest]  `json:"quota,omitzero"`
	Limits   httpx.Patch[LimitsRequest] `json:"limits,omitzero"`
	UsableBy []UsableEntry              `json:"usable_by,omitempty" maxItems:"100" doc:"All of them."`
	Actions  []domain.Permission        `json:"actions,omitempty" minItems:"1" uniqueItems:"true" doc:"All of them."`
	ID       *plainText                 `json:"id,omitempty" minLength:"1"`
	Secret   *domain.Secret             `json:"secret,omitempty" minLength:"1" maxLength:"1024"`
}

// Resolve implements huma.Resolver.
func (c *ChangeConnection) Resolve(ctx huma.Context) []error {
	faults := append(checkUsable(c.UsableBy), httpx.CheckNulls(ctx, "idle_timeout", "quota", "limits")...)
	limits := c.Limits.Apply(nil) // huma resolves no parts of a patch
	for n, id := range limits.Images {
		faults = append(faults, httpx.NotZero(id.UUID, fmt.Sprintf("body.limits.images[%d]", n))...)
	}
	for n, id := range limits.Networks {
		faults = append(faults, httpx.NotZero(id.UUID, fmt.Sprintf("body.limits.networks[%d]", n))...)
	}
	if idle := c.IdleTimeout.Apply(""); idle.value() == 0 && !c.IdleTimeout.IsNull() && !c.IdleTimeout.IsZero() {
		faults = append(faults, apperr.InvalidField("idle_timeout", mustBeDuration+", or null"))
	}
	faults = append(faults, checkCredentialID(c.ID)...)
	if c.ID != nil && c.Secret == nil {
		faults = append(faults, apperr.InvalidField("secret",
			"must be given with another id: the secret of that application credential"))
	}
	if len(faults) == 0 && reflect.ValueOf(*c).IsZero() {
		faults = append(faults, apperr.New(apperr.Invalid,
			"the body changes nothing: it must have name, expires_at, idle_timeout, quota, limits, usable_by, "+
				"actions or secret"))
	}
	return faults
}

// draft is the connection with the change, as far as the request alone decides it.
func (c ChangeConnection) draft(before domain.Connection) (draft, error) {
	d := draft{Connection: before, secret: domain.Deref(c.Secret)}
	d.Flavors, d.Secret = nil, nil // they stay unless the credential is replaced
	if d.secret != "" && d.Kind != domain.CredentialConnection {
		return d, apperr.InvalidField("secret",
			"cannot be combined with the kind trust: another expires_at replaces a trust")
	}
	if c.ID != nil {
		d.DelegationID = string(*c.ID)
	}
	if c.Name != nil {
		d.Name = string(*c.Name)
	}
	if c.ExpiresAt != nil {
		d.ExpiresAt = moment(*c.ExpiresAt)
	}
	if c.Actions != nil {
		d.Actions = c.Actions
	}
	if c.UsableBy != nil {
		d.UsableBy, d.names = split(c.UsableBy)
		d.UsableNames = slices.DeleteFunc(slices.Clone(d.UsableNames), func(n domain.UsableByName) bool {
			return !slices.Contains(d.UsableBy, n.ID)
		})
	}
	if !c.IdleTimeout.IsZero() {
		d.IdleTimeout = c.IdleTimeout.Apply("").value()
	}
	d.Quota = domain.ConnectionQuota(c.Quota.Apply(d.Quota))
	d.Limits = c.Limits.Apply(d.Limits).limits()
	return d, nil
}
