package actions

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// shelve shelves the server, until it is on no host any more. A cloud that lets only admins offload keeps it on its
// host until Nova's own time for that: then shelved is enough.
func (x executor) shelve(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	switch {
	case strings.HasPrefix(server.Task, "shelving"):
		return Progress{State: state}, nil
	case server.Task != "":
		return Progress{State: state, Blocked: busy(server)}, nil
	case server.Status == "SHELVED_OFFLOADED":
		x.recordSeen(ctx, server)
		return Progress{State: state, Done: true}, nil
	case server.Status == "SHELVED":
		return x.offload(ctx, server, state)
	case !mayLeaveHost(state):
		return x.notAllowed(state, notFrom(state, x.Action.Action))
	}
	if err := x.setCalledAt(ctx); err != nil {
		return Progress{}, err
	}
	if err := x.cloud.ShelveServer(ctx, server.ID); err != nil {
		return Progress{}, err
	}
	x.recordAccepted(ctx, server)
	return Progress{State: x.After(), Accepted: true}, nil
}

// offload takes a shelved server off its host.
func (x executor) offload(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	err := x.cloud.OffloadServer(ctx, server.ID)
	switch apperr.CodeOf(err) {
	case "":
		return Progress{State: state}, nil
	case apperr.Forbidden:
		x.recordSeen(ctx, server)
		return Progress{State: state, Done: true}, nil
	case apperr.Conflict: // Nova has just begun it by itself
		return Progress{State: state, Blocked: err}, nil
	}
	return Progress{}, err
}

// snapshot makes an image of the server, once, and waits until it is active. A shelved server is unshelved first: the
// image that Nova has made of it is deleted with it.
func (x executor) snapshot(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	name := ImageName(server.Name, x.Lease)
	images, err := x.cloud.FindImages(ctx, name)
	if err != nil {
		return Progress{}, err
	}
	for _, image := range images {
		switch image.Status {
		case "active":
			return Progress{State: state, Done: true}, x.give(ctx, image, server)
		case "queued", "saving", "importing", "uploading":
			return Progress{State: state}, nil
		default:
			return Progress{}, apperr.New(apperr.Conflict, "the image %s of the server is %s", image.ID, image.Status)
		}
	}
	switch {
	case server.Task != "":
		return Progress{State: state, Blocked: busy(server)}, nil
	case state == domain.InstanceShelved:
		if err = x.cloud.UnshelveServer(ctx, server.ID); err != nil {
			return Progress{}, err
		}
		return Progress{State: domain.InstanceUpdating}, nil
	case !mayLeaveHost(state):
		return x.notAllowed(state, notFrom(state, x.Action.Action))
	}
	_, err = x.cloud.SnapshotServer(ctx, server.ID, name)
	return Progress{State: state, Accepted: err == nil}, err
}

// give makes the image of a server its project's, when the service account has made it.
func (x executor) give(ctx context.Context, image domain.Image, server domain.Server) error {
	if image.ProjectID == server.ProjectID {
		return nil
	}
	return x.cloud.GiveImage(ctx, image.ID, server.ProjectID)
}

// maxImageName is how many characters Glance takes.
const maxImageName = 255

// ImageName is the name of the image that is made of a server at the end of a lease.
func ImageName(server string, lease uuid.UUID) string {
	suffix := "-" + lease.String()
	if runes := []rune(server); len(runes) > maxImageName-len(suffix) {
		server = string(runes[:maxImageName-len(suffix)])
	}
	return server + suffix
}

// mayLeaveHost reports whether Nova shelves servers of the state, and makes images of them.
func mayLeaveHost(state domain.InstanceState) bool {
	return state == domain.InstanceActive || state == domain.InstanceStopped || state == domain.InstancePaused
}

func notFrom(state domain.InstanceState, action domain.Action) error {
	return apperr.New(apperr.Conflict, "a server in the state %s does not allow the action %s", state, action)
}

func busy(server domain.Server) error {
	return apperr.New(apperr.Conflict, "Nova is at work on the server: %s", server.Task)
}
