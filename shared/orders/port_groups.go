package orders

import (
	"context"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// setGroups takes StepGroups. It can be repeated: Neutron is read first. It is recorded once the server is built: until
// then Nova may make ports, also others in their place. A port that someone has taken from the server gets none. What
// Neutron rejects for good is recorded as the instance's failure.
func (e Engine) setGroups(
	ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance,
) error {
	areFound, err := cloud.SetNetworkGroups(ctx, i.ServerID, i.Spec.Attachments)
	var out domain.PortGroups
	switch {
	case apperr.Final(err) && apperr.CodeOf(err) != apperr.Forbidden: // which another session may do
		out.Problem = domain.ProblemOf(err)
	case err != nil:
		return err
	case i.AwaitsPorts():
		return nil
	case !areFound:
		slog.WarnContext(ctx, "a port with security groups of its own is missing", "project_id", order.ProjectID,
			"instance_id", i.ID, "server_id", i.ServerID)
	}
	return e.Orders.RecordGroups(ctx, order, claim, i.ID, out)
}
