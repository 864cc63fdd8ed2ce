package connections

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// usableEntry is one entry of usable_by: an id, or a name with its domain.
type usableEntry struct {
	id   string
	name *nameOf
	bad  bool // it is neither
}

// nameOf is who is given by name.
type nameOf struct {
	User    *string `json:"user"`
	Project *string `json:"project"`
	Domain  *string `json:"domain"` // name or id; nil is that of the caller's project

	field string
}

// UnmarshalJSON implements json.Unmarshaler. What is wrong with an entry is said by check, which knows where it stands.
func (e *usableEntry) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &e.id)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	e.bad = text[0] != '{' || d.Decode(&e.name) != nil
	return nil
}

// users takes the entries of usable_by. A repeated id counts once.
func (c creation) users(w *wish) error {
	if len(c.UsableBy) > domain.MaxUsableBy {
		return apperr.InvalidField("usable_by", fmt.Sprintf("has %d entries: must have %d at most", len(c.UsableBy), domain.MaxUsableBy))
	}
	for n, e := range c.UsableBy {
		field := fmt.Sprintf("usable_by[%d]", n)
		switch {
		case e.bad:
			return apperr.InvalidField(field, `must be an id, {"user": NAME, "domain": DOMAIN} or {"project": NAME, "domain": DOMAIN}`)
		case e.name != nil:
			e.name.field = field
			if err := e.name.check(); err != nil {
				return err
			}
			w.names = append(w.names, *e.name)
		case !w.isID(e.id):
			return badID(field, e.id)
		case !slices.Contains(w.UsableBy, e.id):
			w.UsableBy = append(w.UsableBy, e.id)
		}
	}
	if len(w.names) > maxNames {
		return apperr.InvalidField("usable_by", fmt.Sprintf("has %d names: must have %d at most, and the rest as ids", len(w.names), maxNames))
	}
	return nil
}

// maxNames bounds what one request may have Keystone look up.
const maxNames = 20

// check wants the name of a user or of a project, and not both.
func (n nameOf) check() error {
	switch {
	case n.User == nil && n.Project == nil:
		return apperr.InvalidField(n.field, "must have user or project, a name", "user", "project")
	case n.User != nil && n.Project != nil:
		return apperr.InvalidField(n.field, "has user and project: must have one of them", "user", "project")
	}
	for _, part := range []struct {
		name string
		text *string
	}{{"user", n.User}, {"project", n.Project}, {"domain", n.Domain}} {
		if part.text == nil {
			continue
		}
		if *part.text == "" {
			return apperr.InvalidField(n.field+"."+part.name, "is empty: must be a name")
		}
		if err := plain(n.field+"."+part.name, *part.text); err != nil {
			return err
		}
	}
	return nil
}

// what says whether a user or a project is named, and how it is called.
func (n nameOf) what() (kind, name string) {
	if n.User != nil {
		return "user", *n.User
	}
	return "project", *n.Project
}

var (
	// keystoneID is the form of the ids that Keystone itself makes: 32 digits of what it stores, 64 of what is in LDAP or federated.
	keystoneID = regexp.MustCompile(`^([0-9a-f]{32}|[0-9a-f]{64})$`)
	// otherID is the form of ids that a backend of its own may have.
	otherID = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)
)

// isID says whether a text has the form of an id of this Keystone. Where its ids are others than those that Keystone makes, the ids of
// whoever delegates are, too.
func (w *wish) isID(text string) bool {
	own := keystoneID.MatchString(w.UserID) && keystoneID.MatchString(w.ProjectID)
	return keystoneID.MatchString(text) || !own && otherID.MatchString(text)
}

// badID refuses what may be a name: nobody could act through the connection, and whoever gets that text as his id later could.
func badID(field, text string) error {
	name := text
	if !otherID.MatchString(name) {
		name = "NAME"
	}
	return apperr.InvalidField(field, fmt.Sprintf(
		"%.100q is not the id of a user or a project (32 or 64 digits 0-9 and a-f): `openstack user show -f value -c id %s` prints that of a user, "+
			"`openstack project show -f value -c id %s` that of a project; a name is written as {\"user\": %.100[1]q} or {\"project\": %.100[1]q}, with "+
			"\"domain\" for another domain than your project's", text, name, name))
}
