package domain

import (
	"time"

	"github.com/google/uuid"
)

// RemoteCloud is another cloud than ours, or another region, to which there are connections.
type RemoteCloud struct{ AuthURL, Region string }

// RemotePace says when the servers of a connection to another cloud are due to be read again.
type RemotePace struct {
	Usual  time.Duration
	Moving time.Duration // while Nova is at work on one of them
	Within time.Duration // which is only believed for so long after the server's last change
}

// RemoteRead is a claimed read of the servers of a connection to another cloud. One that never was read has the zero Since and SweptAt.
type RemoteRead struct {
	Connection Connection
	Claim      uuid.UUID
	At         time.Time // the database's clock, before Nova is asked
	Since      time.Time // changes before this moment are known
	SweptAt    time.Time // when all servers were last read
}
