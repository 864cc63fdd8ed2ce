package actions

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// deploy rebuilds a tracked server with an agent on it. One that is stopped is started first.
func (x executor) deploy(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	if x.Instance.ID == uuid.Nil {
		if err := x.Check(state); err != nil {
			return Progress{}, err
		}
		return Progress{}, apperr.New(apperr.Conflict,
			"the server is not tracked: connect it first, by POST /v1/servers")
	}
	isRequested := x.Deployment.ID != uuid.Nil && server.Metadata[domain.DeployMark] == x.Deployment.ID.String()
	if end := x.Deployment.NotAfter; !isRequested && !end.IsZero() && !x.Follow.Now.Before(end) {
		return Progress{}, apperr.New(apperr.Conflict,
			"the deployment's token has expired before the rebuild: deploy again")
	}
	switch domain.DeployNext(x.Deployment.ID, server) {
	case domain.DeployDone:
		x.recordSeen(ctx, server)
		return Progress{State: state, Done: true}, nil
	case domain.DeployFailed:
		x.recordSeen(ctx, server)
		return Progress{}, faultOf(server)
	case domain.DeployStart:
		if _, err := x.imageFor(server); err != nil {
			return Progress{}, err
		}
		return x.accepted(ctx, server, state, false, x.start(ctx, server.ID, state))
	case domain.DeployRebuild:
		return x.accepted(ctx, server, state, true, x.rebuild(ctx, server))
	}
	if err := x.Check(state); err != nil {
		return x.notAllowed(state, err)
	}
	if x.Follow == nil {
		return Progress{State: state}, nil
	}
	blocked := apperr.New(apperr.Conflict, "Nova has been working on the server for %s", deployPatience)
	return Progress{State: state, Blocked: blocked}, nil
}

// accepted is the progress after a call. Starting the server does not complete the request, rebuilding does.
func (x executor) accepted(
	ctx context.Context, server domain.Server, state domain.InstanceState, isRebuild bool, err error,
) (Progress, error) {
	if err != nil {
		return Progress{}, err
	}
	x.recordAccepted(ctx, server, state)
	return Progress{State: x.After(state), Accepted: isRebuild}, nil
}

func (x executor) rebuild(ctx context.Context, server domain.Server) error {
	image, err := x.imageFor(server)
	if err != nil {
		return err
	}
	r, err := x.Deployment.Prepare(ctx)
	if err != nil {
		return err
	}
	r.ImageID, r.Metadata = image, server.Marked(r.ID)
	return x.cloud.RebuildServer(ctx, server.ID, r, server.Image == nil)
}

// imageFor is the image that the server is rebuilt from, if the connection allows it.
func (x executor) imageFor(server domain.Server) (string, error) {
	image := x.Deployment.ImageID
	if image == "" && server.Image == nil {
		return "", apperr.InvalidField("server_image",
			"must be the id of an image, because the server boots from a volume")
	}
	if image == "" {
		image = server.Image.ID
	}
	return image, x.Limits.CheckImage("server_image", image)
}
