package managed

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongInterruptedImage: an image that was left without its content gets it.
func TestLongInterruptedImage(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, ImageDriver{}, domain.ImageSpec{
		DiskFormat: "raw", Content: base64.StdEncoding.EncodeToString([]byte("x")),
	})
	_, err := s.Cloud.CreateImage(t.Context(), domain.ImageRequest{
		Name: "thing", DiskFormat: "raw", ContainerFormat: "bare", Tags: memberTags(s.in.Member.ID),
	})
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := s.list(t); o.State != ObjectIncomplete {
		t.Errorf("without content: %+v", o)
	}
	if o, updates := s.settle(t); updates != 0 || o.State != ObjectReady || len(o.Extra) > 0 {
		t.Errorf("it is %+v after %d updates", o, updates)
	}
}

// TestLongImportedImage: Glance fetches the content itself, or says that it cannot.
func TestLongImportedImage(t *testing.T) {
	t.Parallel()
	address := serveImages(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/image" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, "content")
	})
	s := newSandbox(t, ImageDriver{}, domain.ImageSpec{DiskFormat: "raw", SourceURL: address + "/image"})
	o, updates := s.settle(t)
	if i := o.Raw.(domain.ImageDetail); updates != 0 || i.SizeBytes != int64(len("content")) || i.Status != "active" {
		t.Errorf("%d updates to %+v", updates, i)
	}

	s = newSandbox(t, ImageDriver{}, domain.ImageSpec{DiskFormat: "raw", SourceURL: address + "/none"})
	if _, err := s.driver.Create(t.Context(), s.Session, s.in); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(settleFor); ; time.Sleep(stepPause) {
		o, ok := s.list(t)
		if ok && o.State == ObjectError && o.Reason != "" {
			return
		}
		if !ok || o.State != ObjectWorking || time.Now().After(end) {
			t.Fatalf("it is %+v", o)
		}
	}
}

// serveImages serves images where Glance fetches them from: it uses the ports 80 and 443 only.
func serveImages(t *testing.T, serve http.HandlerFunc) (address string) {
	t.Helper()
	address = fmt.Sprintf("127.%d.%d.1:80", 1+rand.N(250), rand.N(250))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("the test has to serve an image at port 80: %v", err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: serve}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return "http://" + address
}

// TestLongDeadImport: Glance takes no second import of an image whose import has not ended, but its deletion; another
// image is made then.
func TestLongDeadImport(t *testing.T) {
	t.Parallel()
	var isSlow atomic.Bool
	isSlow.Store(true)
	end := make(chan struct{})
	address := serveImages(t, func(w http.ResponseWriter, r *http.Request) {
		if isSlow.Load() {
			select {
			case <-end:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "content")
	})
	t.Cleanup(func() { close(end) })
	s := newSandbox(t, ImageDriver{}, domain.ImageSpec{DiskFormat: "raw", SourceURL: address})
	if _, err := s.driver.Create(t.Context(), s.Session, s.in); err != nil {
		t.Fatal(err)
	}
	var dead domain.ImageDetail
	for end := time.Now().Add(settleFor); dead.Status != "importing"; time.Sleep(stepPause) {
		o, ok := s.list(t)
		if dead = raw[domain.ImageDetail](o); !ok || o.State != ObjectWorking || time.Now().After(end) {
			t.Fatalf("it is %+v", o)
		}
	}
	dead.UpdatedAt = dead.UpdatedAt.Add(-importFor)
	if o := imageObject(dead); o.State != ObjectError || !dead.IsImporting {
		t.Errorf("after %s: %+v", importFor, o)
	}
	if err := s.Cloud.ImportImage(t.Context(), dead.ID, address); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("a second import: %v", err)
	}
	isSlow.Store(false)
	s.remove(t)
	if o, _ := s.settleNew(t); o.ID == dead.ID || raw[domain.ImageDetail](o).SizeBytes != int64(len("content")) {
		t.Errorf("it is %+v", o)
	}
}

// TestImportWithoutEnd: an import that Glance has not ended within an hour has lost its Glance. The image is made
// again, unless it was ready once.
func TestImportWithoutEnd(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"queued", "importing", "uploading", "saving"} {
		i := domain.ImageDetail{IsImporting: true, UpdatedAt: time.Now().Add(time.Minute - importFor)}
		i.Status = status
		if o := imageObject(i); o.State != ObjectWorking {
			t.Errorf("%s for less than %s: %+v", status, importFor, o)
		}
		i.UpdatedAt = time.Now().Add(-importFor)
		o := imageObject(i)
		if o.State != ObjectError || o.Reason == "" {
			t.Errorf("%s for %s: %+v", status, importFor, o)
		}
		s := member(0, func(s *observed) { s.object, s.member.Status = o, domain.MemberError })
		repairs := target{count: 1, maxUnavailable: 1, surges: true, revision: 2, repairs: true}
		if steps := stepsOf(decide(repairs, []observed{s}, testNow)); steps != "record 0" {
			t.Errorf("%s, was ready once: %s", status, steps)
		}
		s.member.WasReady, s.member.MayHaveData = false, false
		if steps := stepsOf(decide(repairs, []observed{s}, testNow)); steps != "create 0, delete 0" {
			t.Errorf("%s, was never ready: %s", status, steps)
		}
	}
}

// TestLongSnapshotOfAnImage: the snapshot of a server has the properties of its image, and is not taken for the image.
func TestLongSnapshotOfAnImage(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, ImageDriver{}, domain.ImageSpec{
		DiskFormat: "raw", Content: base64.StdEncoding.EncodeToString([]byte("x")), Properties: map[string]string{"team": "a"},
	})
	made, _ := s.settle(t)
	nova := s.project.Session(t)
	facts := testkit.Sandbox(t)
	serverID, err := nova.CreateServer(t.Context(), domain.LaunchSpec{
		FlavorID: facts.FlavorID, ImageID: made.ID, NetworkIDs: []string{facts.NetworkID},
	}, "snapshot", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.project.Await(t, serverID, "ACTIVE")
	id, err := nova.SnapshotServer(t.Context(), serverID, "snapshot", uuid.Nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nova.DeleteImage(context.Background(), id) })
	all, err := s.Cloud.TaggedImages(t.Context(), s.ProjectID, "")
	if err != nil {
		t.Fatal(err)
	}
	n := slices.IndexFunc(all, func(i domain.ImageDetail) bool { return i.ID == id })
	if n < 0 || all[n].Properties["team"] != "a" {
		t.Fatalf("the snapshot does not inherit: %+v", all)
	}
	if o, _ := s.list(t); o.ID != made.ID || len(o.Extra) > 0 {
		t.Errorf("it is %+v", o)
	}
}
