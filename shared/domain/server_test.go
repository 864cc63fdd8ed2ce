package domain

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestSelects: a server that is deleted is listed only to who wants it. Nova shows it for a moment after the deletion.
func TestSelects(t *testing.T) {
	t.Parallel()
	deleted := Server{Name: "Web-1", Status: "DELETED", KeyName: "laptop"}
	active := deleted
	active.Status = "ACTIVE"
	for name, tc := range map[string]struct {
		query  ServerQuery
		server Server
		want   bool
	}{
		"all":                  {ServerQuery{}, active, true},
		"deleted":              {ServerQuery{}, deleted, false},
		"deleted, by name":     {ServerQuery{Name: "web"}, deleted, false},
		"deleted, by status":   {ServerQuery{Status: "DELETED"}, deleted, true},
		"deleted, as a change": {ServerQuery{ChangedSince: time.Unix(1, 0)}, deleted, true},
		"another case":         {ServerQuery{Name: "wEB"}, active, true},
		"another key":          {ServerQuery{KeyName: "other"}, active, false},
	} {
		if got := tc.query.Selects(tc.server); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// TestIsFloatingIPMark: what a user has written there stays.
func TestIsFloatingIPMark(t *testing.T) {
	t.Parallel()
	for description, want := range map[string]bool{
		FloatingIPMark(uuid.New()): true, "": false, "cloudfn:": false, "cloudfn: of the web server": false,
		"web cloudfn_request:" + uuid.NewString(): false,
	} {
		if got := IsFloatingIPMark(description); got != want {
			t.Errorf("%q: got %t", description, got)
		}
	}
}
