package domain

import "time"

// RemoteCloud is another cloud or region with connections.
type RemoteCloud struct{ AuthURL, Region string }

// RemotePace is how often the servers of a connection to another cloud are read.
type RemotePace struct {
	Usual  time.Duration
	Moving time.Duration // while Nova works on one of them
	Within time.Duration // for at most so long after the server's last change
}

// RemoteRead is a claimed read of the servers of a connection to another cloud. Zero Since and SweptAt = never read.
type RemoteRead struct {
	Connection Connection
	Claim      Claim
	At         time.Time // the database's clock before the read
	Since      time.Time // changes before this are known
	SweptAt    time.Time // when all servers were last read
}
