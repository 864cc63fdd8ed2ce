package domain

import "time"

// MaxSession is the longest that somebody is signed in at the console; a token that ends sooner ends the session.
const MaxSession = 12 * time.Hour

// Login is what a user signs in with.
type Login struct {
	User          string
	UserDomain    string // by name
	Password      Secret
	Project       string // by name or id; "" is the only one that the user has
	ProjectDomain string // by name; "" = whichever: the project is looked for among the user's own
}

// Session is somebody who is signed in: the token to act with, and whose it is.
type Session struct {
	Token Secret
	Ours  bool // the token was made for this session, and ends with it
	Who   Identity
	Until time.Time
}
