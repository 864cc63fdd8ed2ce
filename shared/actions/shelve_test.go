package actions

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestShelveAndSnapshot in every state of a server: one step each.
func TestShelveAndSnapshot(t *testing.T) {
	t.Parallel()
	lease := uuid.New()
	for name, tc := range map[string]struct {
		action    domain.Action
		server    domain.Server
		image     string // the status of the image that is there
		offload   error
		call      string
		isDone    bool
		isBlocked bool
		code      apperr.Code
	}{
		"shelve an active server":   {action: domain.Shelve, server: server("ACTIVE", ""), call: "shelve"},
		"shelve a stopped server":   {action: domain.Shelve, server: server("SHUTOFF", ""), call: "shelve"},
		"shelve a suspended server": {action: domain.Shelve, server: server("SUSPENDED", ""), call: "shelve"},
		"being shelved":             {action: domain.Shelve, server: server("ACTIVE", "shelving_image_uploading")},
		"being offloaded":           {action: domain.Shelve, server: server("SHELVED", "shelving_offloading")},
		"shelved":                   {action: domain.Shelve, server: server("SHELVED", ""), call: "offload"},
		"shelved, offloading is not allowed": {
			action: domain.Shelve, server: server("SHELVED", ""), call: "offload", isDone: true,
			offload: apperr.New(apperr.Forbidden, "policy"),
		},
		"shelved, Nova offloads": {
			action: domain.Shelve, server: server("SHELVED", ""), call: "offload", isBlocked: true,
			offload: apperr.New(apperr.Conflict, "at work"),
		},
		"offloaded":             {action: domain.Shelve, server: server("SHELVED_OFFLOADED", ""), isDone: true},
		"being unshelved":       {action: domain.Shelve, server: server("SHELVED", "spawning"), isBlocked: true},
		"shelve while building": {action: domain.Shelve, server: server("BUILD", "networking"), isBlocked: true},
		"shelve in ERROR":       {action: domain.Shelve, server: server("ERROR", ""), code: apperr.Conflict},
		"shelve a deleted one":  {action: domain.Shelve, server: server("DELETED", ""), code: apperr.NotFound},
		"snapshot":              {action: domain.Snapshot, server: server("ACTIVE", ""), call: "snapshot"},
		"the image is saved":    {action: domain.Snapshot, server: server("ACTIVE", ""), image: "saving"},
		"the image is active":   {action: domain.Snapshot, server: server("ACTIVE", ""), image: "active", isDone: true},
		"the image is killed": {
			action: domain.Snapshot, server: server("ACTIVE", ""), image: "killed", call: "snapshot",
		},
		"the image is deactivated": {
			action: domain.Snapshot, server: server("ACTIVE", ""), image: "deactivated", code: apperr.Conflict,
		},
		"snapshot of a shelved server": {
			action: domain.Snapshot, server: server("SHELVED_OFFLOADED", ""), call: "unshelve",
		},
		"snapshot while building": {action: domain.Snapshot, server: server("BUILD", ""), isBlocked: true},
	} {
		nova := &fakeNova{server: tc.server, offload: tc.offload}
		if tc.image != "" {
			nova.images = []domain.Image{{Name: ImageName(tc.server.Name, lease), Status: tc.image}}
			if tc.image == "saving" {
				nova.images[0].UpdatedAt = time.Now()
			}
		}
		a := actionOf(domain.ActionRequest{Action: tc.action})
		a.Lease, a.Follow = lease, &Follow{RequestedAt: time.Now(), Now: time.Now()}
		p, err := Engine{&fakeInstances{}}.Step(t.Context(), nova, a)
		if apperr.CodeOf(err) != tc.code || p.Done != tc.isDone || (p.Blocked != nil) != tc.isBlocked ||
			strings.Join(nova.calls, " ") != tc.call {
			t.Errorf("%s: called %v, got %+v, %v", name, nova.calls, p, err)
		}
	}
	for name, tc := range map[string]struct {
		server      domain.Server
		isFollowed  bool
		image, want string
		code        apperr.Code
	}{
		"a request":              {server: server("PAUSED", ""), image: "mine", want: "mine"},
		"without a name":         {server: server("SHUTOFF", ""), want: "web"},
		"through a connection":   {server: server("ACTIVE", ""), isFollowed: true, want: "web"},
		"of a shelved server":    {server: server("SHELVED", ""), code: apperr.Conflict},
		"of a shelved, followed": {server: server("SHELVED", ""), isFollowed: true, code: apperr.Conflict},
		"Nova is at work":        {server: server("ACTIVE", "image_snapshot"), code: apperr.Conflict},
	} {
		tc.server.Name = "web"
		nova, a := &fakeNova{server: tc.server}, actionOf(domain.ActionRequest{Action: domain.Snapshot})
		a.Arguments.Name = tc.image
		if tc.isFollowed {
			a.Follow = &Follow{RequestedAt: time.Now(), Now: time.Now()}
		}
		p, err := Engine{&fakeInstances{}}.Run(t.Context(), nova, a)
		if apperr.CodeOf(err) != tc.code || (p.ImageID != "") != (tc.code == "") || tc.code == "" &&
			(nova.images[0].Name != tc.want || p.State != domain.StateOf(tc.server.Status, "") || !p.Accepted) {
			t.Errorf("snapshot, %s: got %+v, %v, images %+v", name, p, err, nova.images)
		}
	}
	if name := ImageName(strings.Repeat("ä", 300), lease); len([]rune(name)) != 255 ||
		!strings.HasSuffix(name, lease.String()) {
		t.Errorf("the image's name is %s", name)
	}
}

// TestSnapshotsOfNamesakes: two servers of a lease with one name get an image each, and neither counts as done before
// its own is active.
func TestSnapshotsOfNamesakes(t *testing.T) {
	t.Parallel()
	lease, nova := uuid.New(), &fakeNova{}
	step := func(id string) Progress {
		t.Helper()
		nova.server = server("ACTIVE", "")
		nova.server.ID, nova.server.Name = id, "db"
		a := actionOf(domain.ActionRequest{Action: domain.Snapshot})
		a.Lease, a.ServerID, a.Follow = lease, id, &Follow{RequestedAt: time.Now(), Now: time.Now()}
		p, err := Engine{&fakeInstances{}}.Step(t.Context(), nova, a)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if step("a"); len(nova.images) != 1 {
		t.Fatalf("the images are %+v", nova.images)
	}
	nova.images[0].Status = "active"
	if p := step("b"); p.Done || len(nova.images) != 2 {
		t.Errorf("the second server: %+v, the images are %+v", p, nova.images)
	}
	for id, isDone := range map[string]bool{"a": true, "b": false} {
		if p := step(id); p.Done != isDone || len(nova.images) != 2 {
			t.Errorf("server %s: %+v, the images are %+v", id, p, nova.images)
		}
	}
	for _, image := range nova.images {
		if image.Name != ImageName("db", lease) {
			t.Errorf("an image is called %s", image.Name)
		}
	}
}

// TestStuckImage: an image that Nova has stopped making is waited for with a reason, and then another one is made.
func TestStuckImage(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		status, task string
		unchanged    time.Duration
		call         string
		waits        bool
	}{
		"just queued":            {"queued", "image_snapshot", 0, "", true},
		"uploading for an hour":  {"saving", "image_uploading", time.Hour, "", true},
		"queued, Nova has ended": {"queued", "", time.Minute, "", true},
		"saving, Nova has ended": {"saving", "", 9 * time.Minute, "", true},
		"queued for too long":    {"queued", "", 11 * time.Minute, "snapshot", false},
		"saving for too long":    {"saving", "", 11 * time.Minute, "snapshot", false},
		"just killed":            {"killed", "", 0, "", true},
		"killed":                 {"killed", "", 11 * time.Minute, "snapshot", false},
	} {
		nova := &fakeNova{server: server("ACTIVE", tc.task)}
		nova.images = []domain.Image{{ID: "i", Status: tc.status, UpdatedAt: now.Add(-tc.unchanged)}}
		a := actionOf(domain.ActionRequest{Action: domain.Snapshot})
		a.Lease, a.Follow = uuid.New(), &Follow{RequestedAt: now, Now: now}
		p, err := Engine{&fakeInstances{}}.Step(t.Context(), nova, a)
		if err != nil || p.Done || strings.Join(nova.calls, " ") != tc.call || (p.Waits != nil) != tc.waits {
			t.Errorf("%s: called %v, got %+v, %v", name, nova.calls, p, err)
		}
	}
}
