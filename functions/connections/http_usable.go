package connections

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

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
	case n == nil && !isKeystoneID(auth.CallerOrNobody(ctx.Context()), e.id):
		return fault(badID(e.id))
	case n == nil:
		return nil
	case n.User == nil && n.Project == nil:
		return fault("must have user or project, a name")
	case n.User != nil && n.Project != nil:
		return fault("has user and project: must have one of them")
	default:
		for part, text := range map[string]*plainText{"user": n.User, "project": n.Project, "domain": n.Domain} {
			if text != nil && !isName(string(*text)) {
				at.Push(part)
				defer at.Pop()
				return fault("must be a name of 1 to 255 characters, without control characters")
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

// badID rejects what may be a name. Nobody could use a connection with it, and later a user that gets that text
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
