package domain

import "time"

// MaxSession is the longest session at the console. A session also ends with its token.
const MaxSession = 12 * time.Hour

// Login is the credentials of a user who signs in.
type Login struct {
	User          string
	UserDomain    string // by name
	Password      Secret
	Project       string // name or id; "" = the user's only one
	ProjectDomain string // by name; "" = any
}

// Session is a signed-in user and the token.
type Session struct {
	Token Secret
	Ours  bool // the token was made for the session, and is revoked with it
	Who   Identity
	Until time.Time
}
