package actions

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

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
		x.storeServer(ctx, server)
		return Progress{State: state, Done: true}, nil
	case server.Status == "SHELVED":
		return x.offload(ctx, server, state)
	case x.Check(state) != nil:
		return x.notAllowed(server, state, x.Check(state))
	}
	if err := x.setCalledAt(ctx); err != nil {
		return Progress{}, err
	}
	if err := x.cloud.ShelveServer(ctx, server.ID); err != nil {
		return Progress{}, err
	}
	x.recordAccepted(ctx, server)
	return Progress{State: x.After(state), Accepted: true}, nil
}

// offload takes a shelved server off its host.
func (x executor) offload(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	err := x.cloud.OffloadServer(ctx, server.ID)
	switch apperr.CodeOf(err) {
	case "":
		return Progress{State: state}, nil
	case apperr.Forbidden:
		x.storeServer(ctx, server)
		return Progress{State: state, Done: true}, nil
	case apperr.Conflict: // Nova has just begun it on its own
		return Progress{State: state, Blocked: err}, nil
	}
	return Progress{}, err
}

// snapshot makes an image of the server. One that is followed is made once, and waited for until it is active; a lease
// makes another one when it is stuck. For a lease a shelved server is unshelved first: the image that Nova has made of
// it is deleted with it.
func (x executor) snapshot(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	if x.Follow != nil {
		if p, isFollowed, err := x.followImage(ctx, server, state); isFollowed {
			return p, err
		}
	}
	switch {
	case x.Lease != uuid.Nil && state == domain.InstanceShelved && server.Task == "":
		err := x.cloud.UnshelveServer(ctx, server.ID)
		return Progress{State: domain.InstanceUpdating}, err
	case x.Check(state) != nil:
		return x.notAllowed(server, state, x.Check(state))
	case server.Task != "":
		return Progress{State: state, Blocked: busy(server)}, nil
	}
	id, err := x.cloud.SnapshotServer(ctx, server.ID, x.imageName(server), x.mark(server))
	return Progress{State: state, Accepted: err == nil, ImageID: id}, err
}

// mark is the property by which the images of the action are found. Names of servers are not unique.
func (x executor) mark(server domain.Server) uuid.UUID {
	if x.Lease != uuid.Nil {
		return uuid.NewSHA1(x.Lease, []byte(server.ID))
	}
	return x.ID
}

// imageStuckAfter is how long an image that is not active has not changed, and Nova no longer works on the server,
// before a lease makes another one.
const imageStuckAfter = 10 * time.Minute

// followImage waits for an image of the action. isFollowed is false when another one has to be made.
func (x executor) followImage(
	ctx context.Context, server domain.Server, state domain.InstanceState,
) (p Progress, isFollowed bool, err error) {
	images, err := x.cloud.ImagesOf(ctx, x.mark(server), server)
	if err != nil {
		return Progress{}, true, err
	}
	for _, image := range images {
		p = Progress{State: state, ImageID: image.ID}
		isStuck := x.Lease != uuid.Nil && server.Task == "" && x.Follow.Now.Sub(image.UpdatedAt) > imageStuckAfter
		isMoving := slices.Contains([]string{"queued", "saving", "importing", "uploading"}, image.Status)
		switch {
		case image.Status == "active":
			p.Done, p.Waits = true, nil
			return p, true, x.give(ctx, image, server)
		case image.Status == "deactivated", x.Lease == uuid.Nil && !isMoving:
			err = apperr.New(apperr.Conflict, "the image %s of the server is %s", image.ID, image.Status)
			isFollowed = true
		case !isStuck:
			isFollowed = true
		}
	}
	if x.Lease != uuid.Nil && isFollowed {
		p.Waits = apperr.New(apperr.Conflict, "the server %s (%s) waits for its image %s", server.ID, server.Name,
			p.ImageID)
	}
	return p, isFollowed, err
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

// imageName is the name of the image that is made of the server.
func (x executor) imageName(server domain.Server) string {
	if x.Lease != uuid.Nil {
		return ImageName(server.Name, x.Lease)
	}
	return cmp.Or(x.Arguments.Name, server.Name)
}

// ImageName is the name of the image that is made of a server at the end of a lease.
func ImageName(server string, lease uuid.UUID) string {
	suffix := "-" + lease.String()
	if runes := []rune(server); len(runes) > maxImageName-len(suffix) {
		server = string(runes[:maxImageName-len(suffix)])
	}
	return server + suffix
}

func busy(server domain.Server) error {
	return apperr.New(apperr.Conflict, "Nova is at work on the server: %s", server.Task)
}
