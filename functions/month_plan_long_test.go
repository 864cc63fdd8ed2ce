//go:build long

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const elsewhere = "application_credential of another cloud"

// The fates of the users who delegate, and of their projects.
const (
	none            = "nothing happens"
	disabled        = "user disabled, and enabled later"
	disabledBriefly = "user disabled and enabled"
	roleless        = "role removed, and granted later"
	rolelessBriefly = "role removed and granted"
	closed          = "project disabled, and enabled later"
	projectDeleted  = "project deleted"
	userDeleted     = "user deleted"
	passwordReset   = "password reset"
)

// owner is a user who delegates in a project.
type owner struct {
	*testkit.Project
	fate            string
	leaves, returns int  // in which steps
	isAway          bool // Keystone lets nobody delete the user's trusts
	isGone          bool // for good
}

// The ends of single connections.
const (
	kept              = "kept"
	expires           = "expires"
	idle              = "not used"
	deletedByOwner    = "deleted by its owner"
	deletedByAnother  = "deleted by another of its project"
	deletedInKeystone = "trust or credential deleted in Keystone"
	credentialEnds    = "credential ends"
)

// lent is one connection of the month.
type lent struct {
	owner     *owner
	kind, end string
	step      int // in which it ends so
	hours     int // after the start, of expires and idle

	id, inKeystone string
	until          time.Time // the end of its credential, by Keystone's clock; zero = none

	events    string // of its status, that are expected
	isRefused bool   // Keystone does not accept it any more
	isPending bool   // its trust could not be deleted while its owner was away
}

func (l *lent) String() string {
	return fmt.Sprintf("%s (%s, %s in step %d, of one with the fate: %s, in steps %d to %d)", l.id, l.kind, l.end, l.step, l.owner.fate, l.owner.leaves, l.owner.returns)
}

func (l *lent) isActive() bool { return l.events == "active" }

// plan draws n connections of as many owners as there are fates, and when what happens to them.
func (m *month) plan(t *testing.T, random *rand.Rand, n int) {
	t.Helper()
	fates := []string{none, none, disabled, disabledBriefly, roleless, rolelessBriefly, closed, projectDeleted, userDeleted, passwordReset}
	for _, fate := range fates {
		o := &owner{Project: testkit.NewProject(t), fate: fate, leaves: 2 + random.IntN(m.steps-3)}
		o.returns = o.leaves + 1 + random.IntN(m.steps-o.leaves)
		o.Grant(t, m.colleague.UserID, "member")
		m.owners = append(m.owners, o)
	}
	ends := []string{kept, kept, kept, expires, expires, idle, deletedByOwner, deletedByOwner, deletedByAnother, deletedInKeystone, deletedInKeystone, credentialEnds}
	for k := range n {
		l := &lent{owner: m.owners[k%len(m.owners)], kind: []string{trust, trust, trust, credential, credential, elsewhere}[random.IntN(6)]}
		l.end, l.step = ends[random.IntN(len(ends))], 1+random.IntN(m.steps)
		if l.end == credentialEnds && l.kind == trust {
			l.end = expires
		}
		l.hours = (l.step-1)*stepHours + 2 + random.IntN(stepHours-4)
		m.all = append(m.all, l)
	}
}

// delegate makes a connection by the API. The database's clock is Keystone's then.
func (m *month) delegate(t *testing.T, l *lent, token string) {
	t.Helper()
	how, end := `"kind": "trust"`, m.start.Add(time.Duration(m.steps+1)*stepHours*time.Hour)
	switch {
	case l.end == expires:
		end = m.start.Add(time.Duration(l.hours) * time.Hour)
	case l.end == idle:
		how += fmt.Sprintf(`, "idle_timeout": "%dh"`, l.hours)
	case l.end == credentialEnds:
		l.until = time.Now().Add(time.Duration(60+5*l.step) * time.Second).Truncate(time.Second)
		end = l.until.Add(-time.Second)
	}
	if l.kind != trust {
		id, secret := m.credential(t, l)
		l.inKeystone = id
		how = strings.Replace(how, `"kind": "trust"`, fmt.Sprintf(`"kind": "application_credential", "id": %q, "secret": %q`, id, secret), 1)
	}
	if l.kind == elsewhere {
		how += fmt.Sprintf(`, "auth_url": %q`, m.elsewhere)
	}
	made := m.api.As(token).Post(t, "/v1/connections", fmt.Sprintf(`{%s, "actions": ["connect"], "usable_by": [%q], "expires_at": %q}`,
		how, m.colleague.UserID, end.UTC().Format(time.RFC3339Nano)))
	if made.Status != http.StatusCreated {
		t.Errorf("%s: %d %s", l, made.Status, made.Body)
		return
	}
	var c struct{ ID string }
	made.JSON(t, &c)
	l.id, l.events = c.ID, "active"
}

func (m *month) credential(t *testing.T, l *lent) (id, secret string) {
	t.Helper()
	if !l.until.IsZero() {
		return l.owner.AppCredentialUntil(t, l.until)
	}
	return l.owner.AppCredential(t)
}

// leave is what happens to the owner. Keystone deletes the application credentials of a user who loses a role, and the trusts of a user or
// project that is deleted.
func (m *month) leave(t *testing.T, o *owner) {
	t.Helper()
	var lost string // which kind
	switch o.fate {
	case disabled:
		o.Disable(t)
		o.isAway = true
	case disabledBriefly:
		o.Disable(t)
		o.Enable(t)
		return
	case roleless:
		o.Leave(t)
		o.isAway = true
	case rolelessBriefly:
		o.Leave(t)
		o.Grant(t, o.UserID, "member")
		lost = credential
	case closed:
		o.Close(t)
		o.isAway = true
	case projectDeleted:
		o.DeleteProject(t)
		o.isGone = true
	case userDeleted:
		o.DeleteUser(t)
		o.isGone = true
	default:
		if o.fate == passwordReset {
			o.ResetPassword(t)
		}
		return
	}
	for _, l := range m.all {
		if l.owner == o && (lost == "" || l.kind != trust) {
			l.isRefused = true
		}
	}
}

// comeBack undoes leave.
func (o *owner) comeBack(t *testing.T) {
	t.Helper()
	if !o.isAway {
		return
	}
	switch o.fate {
	case disabled:
		o.Enable(t)
	case roleless:
		o.Grant(t, o.UserID, "member")
	case closed:
		o.Reopen(t)
	}
	o.isAway = false
}

// finish ends one connection, unless nobody is there who could.
func (m *month) finish(t *testing.T, l *lent) {
	t.Helper()
	isHere := !l.owner.isAway && !l.owner.isGone
	switch {
	case l.end == deletedByOwner && isHere:
		m.delete(t, l, l.owner.Token(t))
	case l.end == deletedByOwner || l.end == deletedByAnother:
		if l.owner.fate == closed && l.owner.isAway || l.owner.fate == projectDeleted && l.owner.isGone {
			return
		}
		m.delete(t, l, m.tokenIn(t, l.owner))
	case l.end == deletedInKeystone && isHere && !l.isRefused:
		l.isRefused = true
		if l.kind == trust {
			l.owner.DropTrust(t, l.inKeystone)
		} else {
			l.owner.DropAppCredential(t, l.inKeystone)
		}
	}
}

// tokenIn is the colleague's in an owner's project.
func (m *month) tokenIn(t *testing.T, o *owner) string {
	t.Helper()
	in := *m.colleague
	in.ID = o.ID
	return in.Token(t)
}

func (m *month) delete(t *testing.T, l *lent, token string) {
	t.Helper()
	if a := m.api.As(token).Do(t, http.MethodDelete, "/v1/connections/"+l.id, ""); a.Status != http.StatusNoContent {
		t.Errorf("%s: %d %s", l, a.Status, a.Body)
		return
	}
	l.events += " deleted"
}
