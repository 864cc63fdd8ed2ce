package process_test

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
	isAbsent        bool // Keystone lets no one delete the user's trusts
	isDeleted       bool // for good
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

// delegated is one connection of the month.
type delegated struct {
	owner     *owner
	kind, end string
	step      int // in which it ends so
	hours     int // after the start, of expires and idle

	id, inKeystone string
	until          time.Time // the end of its credential, by Keystone's clock; zero = none

	events    string // of its status, that are expected
	isRefused bool   // Keystone does not accept it any more
	isPending bool   // its trust could not be deleted while its owner was absent
}

func (l *delegated) String() string {
	return fmt.Sprintf("%s (%s, %s in step %d; of its owner: %s, in steps %d to %d)",
		l.id, l.kind, l.end, l.step, l.owner.fate, l.owner.leaves, l.owner.returns)
}

func (l *delegated) isActive() bool { return l.events == "active" }

// plan draws n connections of as many owners as there are fates, and when what happens to them.
func (m *month) plan(t *testing.T, random *rand.Rand, n int) {
	t.Helper()
	fates := []string{
		none, none, disabled, disabledBriefly, roleless, rolelessBriefly, closed, projectDeleted, userDeleted,
		passwordReset,
	}
	kinds := []string{trust, trust, trust, credential, credential, elsewhere}
	for _, fate := range fates {
		o := &owner{Project: testkit.NewProject(t), fate: fate, leaves: 2 + random.IntN(m.steps-3)}
		o.returns = o.leaves + 1 + random.IntN(m.steps-o.leaves)
		o.Grant(t, m.colleague.UserID, "member")
		m.owners = append(m.owners, o)
	}
	ends := []string{
		kept, kept, kept, expires, expires, idle, deletedByOwner, deletedByOwner, deletedByAnother,
		deletedInKeystone, deletedInKeystone, credentialEnds,
	}
	for k := range n {
		l := &delegated{owner: m.owners[k%len(m.owners)], kind: kinds[random.IntN(len(kinds))]}
		l.end, l.step = ends[random.IntN(len(ends))], 1+random.IntN(m.steps)
		if l.end == credentialEnds && l.kind == trust {
			l.end = expires
		}
		l.hours = (l.step-1)*stepHours + 2 + random.IntN(stepHours-4)
		m.all = append(m.all, l)
	}
}

// delegate makes a connection by the API. The database's clock is Keystone's then.
func (m *month) delegate(t *testing.T, l *delegated, token string) {
	t.Helper()
	how, end := `"kind": "trust"`, m.start.Add(time.Duration(m.steps+1)*stepHours*time.Hour)
	switch l.end {
	case expires:
		end = m.start.Add(time.Duration(l.hours) * time.Hour)
	case idle:
		how += fmt.Sprintf(`, "idle_timeout": "%dh"`, l.hours)
	case credentialEnds:
		l.until = time.Now().Add(time.Duration(60+5*l.step) * time.Second).Truncate(time.Second)
		end = l.until.Add(-time.Second)
	}
	if l.kind != trust {
		id, secret := m.credential(t, l)
		l.inKeystone = id
		what := fmt.Sprintf(`"kind": "application_credential", "id": %q, "secret": %q`, id, secret)
		how = strings.Replace(how, `"kind": "trust"`, what, 1)
	}
	if l.kind == elsewhere {
		how += fmt.Sprintf(`, "auth_url": %q`, m.elsewhere)
	}
	made := m.api.As(token).Post(t, "/v1/connections", fmt.Sprintf(
		`{%s, "actions": ["connect"], "usable_by": [%q], "expires_at": %q}`,
		how, m.colleague.UserID, end.UTC().Format(time.RFC3339Nano)))
	if made.Status != http.StatusCreated {
		t.Errorf("%s: %d %s", l, made.Status, made.Body)
		return
	}
	var c struct{ ID string }
	made.JSON(t, &c)
	l.id, l.events = c.ID, "active"
}

func (m *month) credential(t *testing.T, l *delegated) (id, secret string) {
	t.Helper()
	if !l.until.IsZero() {
		return l.owner.AppCredentialUntil(t, l.until)
	}
	return l.owner.AppCredential(t)
}

// leave is what happens to the owner. A change that is undone before anyone calls Keystone ends nothing: neither a
// disabled user nor a removed role deletes trusts or application credentials.
func (m *month) leave(t *testing.T, o *owner) {
	t.Helper()
	switch o.fate {
	case disabled:
		o.Disable(t)
		o.isAbsent = true
	case disabledBriefly:
		o.Disable(t)
		o.Enable(t)
		return
	case roleless:
		o.Leave(t)
		o.isAbsent = true
	case rolelessBriefly:
		o.Leave(t)
		o.Grant(t, o.UserID, "member")
		return
	case closed:
		o.Close(t)
		o.isAbsent = true
	case projectDeleted:
		o.DeleteProject(t)
		o.isDeleted = true
	case userDeleted:
		o.DeleteUser(t)
		o.isDeleted = true
	case passwordReset:
		o.ResetPassword(t)
		return
	default:
		return
	}
	for _, l := range m.all {
		l.isRefused = l.isRefused || l.owner == o
	}
}

// comeBack undoes leave.
func (o *owner) comeBack(t *testing.T) {
	t.Helper()
	if !o.isAbsent {
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
	o.isAbsent = false
}

// finish ends one connection, unless no authorized user is left.
func (m *month) finish(t *testing.T, l *delegated) {
	t.Helper()
	isHere := !l.owner.isAbsent && !l.owner.isDeleted
	switch {
	case l.end == deletedByOwner && isHere:
		m.delete(t, l, l.owner.Project)
	case l.end == deletedByOwner || l.end == deletedByAnother:
		if l.owner.fate == closed && l.owner.isAbsent || l.owner.fate == projectDeleted && l.owner.isDeleted {
			return
		}
		m.delete(t, l, m.colleagueIn(l.owner))
	case l.end == deletedInKeystone && isHere && !l.isRefused:
		l.isRefused = true
		if l.kind == trust {
			l.owner.DropTrust(t, l.inKeystone)
		} else {
			l.owner.DropAppCredential(t, l.inKeystone)
		}
	}
}

// colleagueIn is the colleague as a member of an owner's project.
func (m *month) colleagueIn(o *owner) *testkit.Project {
	in := *m.colleague
	in.ID = o.ID
	return &in
}

// delete deletes a connection by the API. Keystone does not accept a token of the second in which it revoked others.
func (m *month) delete(t *testing.T, l *delegated, who *testkit.Project) {
	t.Helper()
	var a testkit.Answer
	testkit.Eventually(t, 10*time.Second, "Keystone accepts a new token", func() bool {
		a = m.api.As(who.Token(t)).Do(t, http.MethodDelete, "/v1/connections/"+l.id, "")
		return a.Status != http.StatusUnauthorized
	})
	if a.Status != http.StatusNoContent {
		t.Errorf("%s: %d %s", l, a.Status, a.Body)
		return
	}
	l.events += " deleted"
}
