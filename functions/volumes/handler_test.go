package volumes

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// create makes a volume, and waits until Cinder has.
func create(t *testing.T, app *testkit.Client, body string, header ...string) Volume {
	t.Helper()
	var made Volume
	a := app.Do(t, "POST", "/v1/volumes", body, append(header, "Content-Type", "application/json")...)
	if a.JSON(t, &made); a.Status != 202 || a.Header.Get("Location") != "/v1/volumes/"+made.ID {
		t.Fatalf("%s: got %d %v %s", body, a.Status, a.Header, a.Body)
	}
	testkit.Eventually(t, time.Minute, "the volume is available", func() bool {
		time.Sleep(200 * time.Millisecond)
		app.Get(t, "/v1/volumes/"+made.ID).JSON(t, &made)
		return made.Status == "available"
	})
	return made
}

// TestVolumes makes volumes in the real Cinder, pages over them, and deletes one. Another project, and an admin of one,
// sees none.
func TestVolumes(t *testing.T) {
	t.Parallel()
	p, stranger := testkit.NewProject(t), testkit.NewProject(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	stranger.Grant(t, stranger.UserID, "admin")
	server := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	app, other := server.As(p.Token(t)), server.As(stranger.Token(t))
	data := create(t, app, `{"name": "Data", "description": "of tests", "size_gb": 1}`)
	if data.SizeGB != 1 || data.Name != "Data" || data.Description != "of tests" || data.Bootable || data.Type == "" ||
		data.Zone == "" || len(data.Servers) != 0 || data.CreatedAt.IsZero() {
		t.Errorf("got %+v", data)
	}
	image := testkit.Sandbox(t).ImageID
	root := create(t, app, `{"name": "root", "size_gb": 2, "source": "image", "id": "`+image+`"}`)
	if !root.Bootable || root.SizeGB != 2 {
		t.Errorf("of an image: got %+v", root)
	}
	copied := create(t, app, `{"source": "volume", "id": "`+root.ID+`"}`)
	if copied.SizeGB != 2 || copied.Name != "" {
		t.Errorf("a copy: got %+v", copied)
	}
	// Newest first. Cinder tells whole seconds, and sorts those of one second by id.
	newest := []Volume{data, root, copied}
	slices.SortFunc(newest, func(a, b Volume) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(b.ID, a.ID))
	})
	all := []string{newest[0].ID, newest[1].ID, newest[2].ID}
	for query, want := range map[string][]string{
		"?limit=1": all, "?limit=2": all, "?limit=3": all, "?name=dATA": {data.ID}, "?name=absent": nil,
		"?status=available&limit=2": all, "?status=in-use": nil, "?name=%25": nil, "?marker=" + all[1]: all[2:],
	} {
		var got []string
		for next := "/v1/volumes" + query; next != ""; {
			var page VolumePage
			app.Get(t, next).JSON(t, &page)
			for _, v := range page.Volumes {
				got = append(got, v.ID)
			}
			if next = ""; page.Next != nil {
				next = *page.Next
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", query, got, want)
		}
	}
	path := "/v1/volumes/" + data.ID
	var page VolumePage
	other.Get(t, "/v1/volumes").JSON(t, &page)
	absent := uuid.NewString()
	theirs, none := other.Get(t, path), other.Get(t, "/v1/volumes/"+absent)
	without := func(a testkit.Answer) string {
		_, text, _ := strings.Cut(string(a.Body), `"detail"`)
		text, _, _ = strings.Cut(text, `"request_id"`)
		return strings.NewReplacer(data.ID, "", absent, "").Replace(text)
	}
	if theirs.Status != 404 || without(theirs) != without(none) || len(page.Volumes) != 0 ||
		other.Do(t, "DELETE", path, "").Status != 404 {
		t.Errorf("an admin of another project got %d %s (an absent one: %s) and the list %v", theirs.Status,
			theirs.Body, none.Body, page.Volumes)
	}
	if a := app.Do(t, "DELETE", path, ""); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	testkit.Eventually(t, time.Minute, "the volume is deleted", func() bool { return app.Get(t, path).Status == 404 })
	if a := app.Do(t, "DELETE", path, ""); a.Status != 404 {
		t.Errorf("deleted again: got %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, "/v1/volumes?marker="+data.ID); a.Status != 400 || !testkit.Names(t, a, "marker") {
		t.Errorf("after a deleted volume: got %d %s", a.Status, a.Body)
	}
}

// TestVolumeOnce: a request with an Idempotency-Key makes one volume, also when a replica dies after Cinder's answer.
func TestVolumeOnce(t *testing.T) {
	t.Parallel()
	p, database := testkit.NewProject(t), testkit.Database(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	const body = `{"name": "once", "size_gb": 1}`
	key := []string{"Idempotency-Key", uuid.NewString()}
	first := create(t, app, body, key...)
	if again := create(t, app, body, key...); again.ID != first.ID {
		t.Errorf("sent again it made %s", again.ID)
	}
	testkit.LeaveRequests(t, testkit.Connect(t, database), testkit.Died)
	if again := create(t, app, body, key...); again.ID != first.ID {
		t.Errorf("sent again after a replica has died it made %s", again.ID)
	}
	var page VolumePage
	if app.Get(t, "/v1/volumes").JSON(t, &page); len(page.Volumes) != 1 {
		t.Errorf("there are %+v", page.Volumes)
	}
}

// TestCinderRefuses passes on Cinder's words, with its status.
func TestCinderRefuses(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	p.SetVolumeQuota(t, 1)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	attached := p.AttachVolume(t, p.Boot(t, "has-volume", 1)[0].ID)
	id := uuid.NewString()
	ofImage := `{"size_gb": 1, "source": "image", "id": "` + id + `"}`
	for _, tc := range []struct {
		method, path, body string
		status             int
		detail             string
	}{
		{"DELETE", "/v1/volumes/" + attached, "", 400, "cinder: Invalid volume: Volume status must be available"},
		{"POST", "/v1/volumes", `{"size_gb": 1}`, 403, "Requested volume or snapshot exceeds allowed gigabytes quota"},
		{"POST", "/v1/volumes", `{"size_gb": 1, "type": "absent"}`, 404, "Volume type with name absent could not be"},
		{"POST", "/v1/volumes", `{"source": "snapshot", "id": "` + id + `"}`, 404, "Snapshot " + id + " could not be"},
		{"POST", "/v1/volumes", `{"source": "volume", "id": "` + id + `"}`, 404, "Volume " + id + " could not be"},
		{"POST", "/v1/volumes", ofImage, 400, "Invalid image identifier"},
		{"POST", "/v1/volumes", `{"size_gb": 1, "zone": "absent"}`, 400, "Availability zone 'absent' is invalid"},
	} {
		a := app.Do(t, tc.method, tc.path, tc.body, "Content-Type", "application/json")
		if a.Status != tc.status || !strings.Contains(string(a.Body), tc.detail) {
			t.Errorf("%s %s %s: got %d %s, want %d with %q", tc.method, tc.path, tc.body, a.Status, a.Body, tc.status,
				tc.detail)
		}
	}
}

func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	p, id := testkit.NewProject(t), uuid.NewString()
	server := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	app := server.As(p.Token(t))
	for body, field := range map[string]string{
		`{}`: "size_gb", `{"size_gb": 0}`: "size_gb", `{"source": "image", "id": "` + id + `"}`: "size_gb",
		`{"source": "volume"}`: "id", `{"id": "` + id + `", "size_gb": 1}`: "source",
		`{"size_gb": 1, "source": "backup", "id": "` + id + `"}`: "source", `{"size_gb": 1, "name": "🙂"}`: "name",
		`{"size_gb": 1, "surprise": 1}`: "surprise",
	} {
		if a := app.Post(t, "/v1/volumes", body); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 with %s in errors", body, a.Status, a.Body, field)
		}
	}
	if a := app.Get(t, "/v1/volumes?status=nonsense"); a.Status != 400 || !testkit.Names(t, a, "status") {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	reader := server.As(p.ReaderToken(t))
	if a := reader.Post(t, "/v1/volumes", `{"size_gb": 1}`); a.Status != 403 {
		t.Errorf("a reader got %d %s, want 403", a.Status, a.Body)
	}
	if a := reader.Get(t, "/v1/volumes"); a.Status != 200 {
		t.Errorf("a reader got %d %s, want 200", a.Status, a.Body)
	}
	if a := server.As("").Get(t, "/v1/volumes"); a.Status != http.StatusUnauthorized {
		t.Errorf("without a token: got %d %s, want 401", a.Status, a.Body)
	}
}
