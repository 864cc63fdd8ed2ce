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

// TestConnectWhatCountsAsDeleted is refused in words of that: no id that the caller gave is at fault.
func TestConnectWhatCountsAsDeleted(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	i, _ := l.connectNow(t, stranger(uuid.NewString(), uuid.Nil))
	l.exec(t, "update instances set state = 'deleted' where id = $1", i.ID)
	_, _, err := postgres.Instances{DB: l.DB}.Connect(t.Context(), stranger(i.ServerID, uuid.Nil))
	if e := apperr.As(err); e.Code != apperr.Conflict || len(e.Fields) != 0 || !strings.Contains(e.Message, "counts as deleted") {
		t.Errorf("got %v %+v", err, e)
	}
}

// TestTakenUpAsItIs: what was let go by its project is followed by nobody, so it is taken up again as it was just seen.
func TestTakenUpAsItIs(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	i, _ := l.connectNow(t, stranger(uuid.NewString(), uuid.Nil))
	l.disconnect(t, i.ID, uuid.Nil)
	wanted := stranger(i.ServerID, uuid.Nil)
	wanted.Seen(domain.Server{ID: i.ServerID, Name: "new", Status: "SHUTOFF"})
	wanted.SeenAt = time.Now()
	if again, made := l.connectNow(t, wanted); !made || again.ID != i.ID || again.State != domain.InstanceStopped || again.Name != "new" {
		t.Errorf("it is %+v", again)
	}
	if got, want := l.told(t, i.ID), "1 - active, 2 active active gone:true, 3 stopped stopped"; got != want {
		t.Errorf("told was %q, want %q", got, want)
	}
}
