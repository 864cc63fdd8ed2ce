package contract_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const exampleVolume = "5aa119a8-d25b-45a7-8d1b-88e127885635" // in http.yaml

// Cinder has the volumes, and no table of ours a row of them.
var _ = addNoun(noun{example: exampleVolume, row: "select 1", story: (*story).volumeStory})

// volumeStory is the life of a volume, and of one at a server.
func (s *story) volumeStory(t *testing.T) {
	t.Cleanup(func() { s.project.DeleteVolumes(t) })
	key := []string{"Idempotency-Key", uuid.NewString()}
	made := map[string]any{"name": "data", "size_gb": 1, "type": nil}
	s.is(exampleVolume, s.id(t, "createVolume", 202, variant{example: "empty", set: made, header: key}))
	testkit.LeaveRequests(t, s.conn, testkit.AtWork)
	s.ok(t, "createVolume", 409, variant{example: "empty", set: made, header: key})
	s.awaitVolume(t, "available")
	s.ok(t, "listVolumes", 200, variant{query: []string{"limit=1", "status", "name"}})

	server := s.project.Boot(t, "with-volume", 1)[0].ID
	s.is(exampleServer, server)
	s.ok(t, "attachVolume", 201, variant{example: "kept"})
	s.awaitVolume(t, "in-use")
	s.ok(t, "attachVolume", 200, variant{example: "kept"})
	s.ok(t, "listServerVolumes", 200, variant{})
	other := s.project.Boot(t, "another", 1)[0].ID
	s.is(exampleServer, other)
	s.ok(t, "attachVolume", 409, variant{example: "kept"})
	s.is(exampleServer, server)
	s.ok(t, "detachVolume", 204, variant{})
	s.awaitVolume(t, "available")
	s.ok(t, "deleteVolume", 204, variant{})
}

func (s *story) awaitVolume(t *testing.T, status string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "the volume is "+status, func() bool {
		time.Sleep(300 * time.Millisecond)
		var v struct{ Status string }
		s.ok(t, "getVolume", 200, variant{}).JSON(t, &v)
		return v.Status == status
	})
}
