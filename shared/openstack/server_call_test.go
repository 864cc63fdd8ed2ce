package openstack

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestServerCalls sends what Nova takes, by the lowest microversion that has it.
func TestServerCalls(t *testing.T) {
	t.Parallel()
	for action, tc := range map[domain.Action]struct {
		args    domain.ActionArguments
		version string
		body    map[string]any
	}{
		domain.Pause:   {version: "", body: map[string]any{"pause": nil}},
		domain.Unpause: {version: "", body: map[string]any{"unpause": nil}},
		domain.Suspend: {version: "", body: map[string]any{"suspend": nil}},
		domain.Resume:  {version: "", body: map[string]any{"resume": nil}},
		domain.Unlock:  {version: "", body: map[string]any{"unlock": nil}},
		domain.Resize: {
			args: domain.ActionArguments{Flavor: "2"}, body: map[string]any{"resize": map[string]any{"flavorRef": "2"}},
		},
		domain.ConfirmResize: {body: map[string]any{"confirmResize": nil}},
		domain.RevertResize:  {body: map[string]any{"revertResize": nil}},
		domain.Unrescue:      {body: map[string]any{"unrescue": nil}},
		domain.Rebuild: { // the server has no image: it boots from a volume
			args: domain.ActionArguments{Image: "i"}, version: "2.93",
			body: map[string]any{"rebuild": map[string]any{"imageRef": "i"}},
		},
		domain.Lock: {
			args: domain.ActionArguments{Reason: "why"}, version: "2.73",
			body: map[string]any{"lock": map[string]any{"locked_reason": "why"}},
		},
	} {
		s := newStub(t)
		s.answer("POST /compute/servers/id/action", http.StatusAccepted, "")
		if err := s.session(t).ActOnServer(t.Context(), domain.Server{ID: "id"}, action, tc.args); err != nil {
			t.Fatalf("%s: %v", action, err)
		}
		sent := s.to("/compute/servers/id/action")[0]
		version := sent.Header.Get("X-Openstack-Nova-Api-Version")
		if version == computeBase {
			version = ""
		}
		if diff := cmp.Diff(tc.body, bodyOf(t, sent)); diff != "" || version != tc.version {
			t.Errorf("%s by %q: %s", action, version, diff)
		}
	}
	s := newStub(t)
	s.answer("PUT /compute/servers/id", http.StatusOK, `{"server":{"id":"id","name":"new"}}`)
	err := s.session(t).ActOnServer(t.Context(), domain.Server{ID: "id"}, domain.Rename,
		domain.ActionArguments{Name: "new"})
	sent := s.to("/compute/servers/id")
	if err != nil || len(sent) != 1 {
		t.Fatalf("%d requests: %v", len(sent), err)
	}
	if diff := cmp.Diff(map[string]any{"server": map[string]any{"name": "new"}}, bodyOf(t, sent[0])); diff != "" {
		t.Error(diff)
	}
}

// TestRefusedServerCalls keep Nova's status and its words.
func TestRefusedServerCalls(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]apperr.Code{
		400: apperr.Invalid, 403: apperr.Forbidden, 404: apperr.NotFound, 409: apperr.Conflict,
	} {
		s := newStub(t)
		s.answer("POST /compute/servers/id/action", status, `{"x":{"message":"Instance id is locked"}}`)
		err := s.session(t).ActOnServer(t.Context(), domain.Server{ID: "id"}, domain.Suspend, domain.ActionArguments{})
		if apperr.CodeOf(err) != want || !strings.Contains(apperr.As(err).Message, "Instance id is locked") {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestResizeThatHasEnded is a conflict, which Nova takes for a bad request.
func TestResizeThatHasEnded(t *testing.T) {
	t.Parallel()
	for _, action := range []domain.Action{domain.ConfirmResize, domain.RevertResize} {
		s := newStub(t)
		s.answer("POST /compute/servers/id/action", 400, `{"x":{"message":"Instance has not been resized."}}`)
		err := s.session(t).ActOnServer(t.Context(), domain.Server{ID: "id"}, action, domain.ActionArguments{})
		if apperr.CodeOf(err) != apperr.Conflict || !strings.Contains(apperr.As(err).Message, "has not been resized") {
			t.Errorf("%s: %v", action, err)
		}
	}
}

// TestRescueServer returns Nova's password, which is nowhere else.
func TestRescueServer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		server  domain.Server
		image   string
		version string
		body    map[string]any
	}{
		"plain":         {domain.Server{Image: &domain.ImageRef{ID: "own"}}, "", "", map[string]any{}},
		"from a volume": {domain.Server{}, "i", "2.87", map[string]any{"rescue_image_ref": "i"}},
	} {
		s := newStub(t)
		s.answer("POST /compute/servers/id/action", http.StatusOK, `{"adminPass":"canary"}`)
		tc.server.ID = "id"
		password, err := s.session(t).RescueServer(t.Context(), tc.server, tc.image)
		sent := s.to("/compute/servers/id/action")[0]
		version := strings.TrimPrefix(sent.Header.Get("X-Openstack-Nova-Api-Version"), computeBase)
		diff := cmp.Diff(map[string]any{"rescue": tc.body}, bodyOf(t, sent))
		if err != nil || password.Reveal() != "canary" || version != tc.version || diff != "" {
			t.Errorf("%s by %q: %s, %v: %s", name, version, password.Reveal(), err, diff)
		}
	}
}

// TestEveryActionHasACall: those without a row here have a method of their own.
func TestEveryActionHasACall(t *testing.T) {
	t.Parallel()
	own := []domain.Action{
		domain.Start, domain.Stop, domain.Reboot, domain.Shelve, domain.Unshelve, domain.Snapshot, domain.Rename,
		domain.Deploy, domain.Delete, domain.Rescue,
	}
	for _, name := range domain.Actions() {
		_, hasCall := serverCalls[domain.Action(name)]
		if hasCall == slices.Contains(own, domain.Action(name)) {
			t.Errorf("%s: has a call %t", name, hasCall)
		}
	}
}
