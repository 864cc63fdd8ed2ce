package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// TestConnectRejectsDeletedServer: the error is about the server, not about the id that the caller gave.
func TestConnectRejectsDeletedServer(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	i, _ := l.connectNow(t, foreignServer(uuid.NewString(), uuid.Nil))
	l.exec(t, "update instances set state = 'deleted' where id = $1", i.ID)
	_, _, err := postgres.Instances{DB: l.DB}.Connect(t.Context(), foreignServer(i.ServerID, uuid.Nil))
	if e := apperr.As(err); e.Code != apperr.Conflict || len(e.Fields) != 0 ||
		!strings.Contains(e.Message, "has been deleted") {
		t.Errorf("got %v %+v", err, e)
	}
}

// TestReconnectRecordsCurrentState: nobody polls an instance that its project has disconnected, so connecting it again
// records the server's state of now.
func TestReconnectRecordsCurrentState(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	i, _ := l.connectNow(t, foreignServer(uuid.NewString(), uuid.Nil))
	l.disconnect(t, i.ID, uuid.Nil)
	wanted := foreignServer(i.ServerID, uuid.Nil)
	wanted.Seen(domain.Server{ID: i.ServerID, Name: "new", Status: "SHUTOFF"})
	wanted.SeenAt = time.Now()
	if again, made := l.connectNow(t, wanted); !made || again.ID != i.ID || again.State != domain.InstanceStopped ||
		again.Name != "new" {
		t.Errorf("it is %+v", again)
	}
	if got, want := l.eventsOf(t, i.ID), "1 - active, 2 active active gone:true, 3 stopped stopped"; got != want {
		t.Errorf("the events are %q, want %q", got, want)
	}
}
