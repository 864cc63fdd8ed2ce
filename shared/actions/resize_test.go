package actions

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestResizeRejects what Nova, or its driver, does not do. Nova is not called.
func TestResizeRejects(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flavor string
		limits domain.ConnectionLimits
		code   apperr.Code
	}{
		"the same":       {"small", domain.ConnectionLimits{}, apperr.Invalid},
		"a smaller disk": {"3", domain.ConnectionLimits{}, apperr.Invalid},
		"an unknown one": {"huge", domain.ConnectionLimits{}, apperr.Invalid},
		"not allowed":    {"large", domain.ConnectionLimits{Flavors: []string{"small"}}, apperr.Forbidden},
	} {
		nova := &fakeNova{server: server("ACTIVE", "")}
		a := actionOf(domain.ActionRequest{Action: domain.Resize})
		a.Arguments.Flavor, a.Limits = tc.flavor, tc.limits
		_, err := Engine{&fakeInstances{}}.Step(t.Context(), nova, a)
		if apperr.CodeOf(err) != tc.code || len(nova.calls) > 0 {
			t.Errorf("%s: %v after %v", name, err, nova.calls)
		}
		if fields := apperr.As(err).Fields; len(fields) == 0 || fields[0].Field != "flavor" {
			t.Errorf("%s: names %+v", name, fields)
		}
	}
	nova := &fakeNova{server: server("ACTIVE", "")}
	nova.server.Image = nil // it boots from a volume, whose size stays
	a := actionOf(domain.ActionRequest{Action: domain.Resize})
	a.Arguments.Flavor = "flat"
	if _, err := (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); err != nil || len(nova.calls) != 1 {
		t.Errorf("from a volume: %v after %v", err, nova.calls)
	}
}

// rejecting is a Nova that answers an action with an error.
type rejecting struct {
	*fakeNova
	err error
}

func (r rejecting) ActOnServer(
	ctx context.Context, s domain.Server, action domain.Action, args domain.ActionArguments,
) error {
	_ = r.fakeNova.ActOnServer(ctx, s, action, args)
	return r.err
}

// TestResizeTakesQuota of a connection before Nova is called, again after that, because a poll may have stored the old
// size, and gives it back when Nova rejects the resize for sure.
func TestResizeTakesQuota(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		connection uuid.UUID
		full, nova error
		calls      int
		sizes      []string
	}{
		"accepted":  {uuid.New(), nil, nil, 1, []string{"large", "large"}},
		"the owner": {uuid.Nil, nil, nil, 1, nil},
		"no room":   {uuid.New(), apperr.New(apperr.Quota, "full"), nil, 0, []string{"large"}},
		"rejected":  {uuid.New(), nil, apperr.New(apperr.Conflict, "locked"), 1, []string{"large", "small"}},
		"no answer": {uuid.New(), nil, apperr.New(apperr.Timeout, "504"), 1, []string{"large"}},
	} {
		nova := rejecting{&fakeNova{server: server("ACTIVE", "")}, tc.nova}
		stored := &fakeInstances{full: tc.full}
		a := followed(domain.ActionRequest{Action: domain.Resize}, time.Now())
		a.Arguments.Flavor, a.Instance.ConnectionID = "large", tc.connection
		a.Instance.Spec.Sized(flavors[0])
		_, err := Engine{stored}.Step(t.Context(), nova, a)
		isFailed := tc.full != nil || tc.nova != nil
		if (err != nil) != isFailed || len(nova.calls) != tc.calls || !slices.Equal(stored.sizes, tc.sizes) {
			t.Errorf("%s: %v after %v, sizes %v", name, err, nova.calls, stored.sizes)
		}
	}
}

// TestActionsAreNotRepeated that Nova's log has, although each answer to them is lost.
func TestActionsAreNotRepeated(t *testing.T) {
	t.Parallel()
	for action, before := range map[domain.Action]string{
		domain.Resize: "ACTIVE", domain.ConfirmResize: "VERIFY_RESIZE", domain.RevertResize: "VERIFY_RESIZE",
		domain.Rebuild: "ACTIVE", domain.Unrescue: "RESCUE",
	} {
		request := domain.ActionRequest{Action: action}
		nova := rejecting{&fakeNova{server: server(before, "")}, apperr.New(apperr.Timeout, "504")}
		a := followed(request, time.Now())
		a.Arguments.Flavor = "large"
		if _, err := (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); err == nil {
			t.Errorf("%s: the lost answer is no error", action)
		}
		nova.log = []domain.LoggedAction{{Name: request.LogName(), Start: time.Now()}}
		nova.server.Task = ""
		for range 2 {
			p, err := Engine{&fakeInstances{}}.Step(t.Context(), nova, a)
			if err != nil || !p.Done || len(nova.calls) != 1 {
				t.Errorf("%s: called %v, %+v: %v", action, nova.calls, p, err)
			}
		}
	}
}

// TestImages of a rebuild: the server's own by default, and one by its unique name.
func TestImages(t *testing.T) {
	t.Parallel()
	ofVolume := server("ACTIVE", "")
	ofVolume.Image = nil
	for name, tc := range map[string]struct {
		server domain.Server
		image  string
		limits []string
		want   string
		code   apperr.Code
	}{
		"its own":           {server("ACTIVE", ""), "", nil, "image", ""},
		"its own, no right": {server("ACTIVE", ""), "", []string{"i1"}, "", apperr.Forbidden},
		"by name":           {server("ACTIVE", ""), "debian", nil, "i1", ""},
		"by name, allowed":  {server("ACTIVE", ""), "twice", []string{"i3"}, "i3", ""},
		"not unique":        {server("ACTIVE", ""), "twice", nil, "", apperr.Conflict},
		"unknown":           {server("ACTIVE", ""), "x", nil, "", apperr.Invalid},
		"not active":        {server("ACTIVE", ""), "old", nil, "", apperr.Invalid},
		"from a volume":     {ofVolume, "", nil, "", apperr.Invalid},
		"onto a volume":     {ofVolume, "debian", nil, "i1", ""},
	} {
		nova := &fakeNova{server: tc.server}
		a := actionOf(domain.ActionRequest{Action: domain.Rebuild})
		a.Arguments.Image, a.Limits.Images = tc.image, tc.limits
		_, err := Engine{&fakeInstances{}}.Step(t.Context(), nova, a)
		if apperr.CodeOf(err) != tc.code || nova.args.Image != tc.want {
			t.Errorf("%s: %v, called with %q", name, err, nova.args.Image)
		}
		if err != nil && (len(apperr.As(err).Fields) == 0 || apperr.As(err).Fields[0].Field != "image") {
			t.Errorf("%s: names %+v", name, apperr.As(err).Fields)
		}
	}
}
