package servers

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ServerDeletion is what a deletion of a server deletes with it, and what it leaves in the project.
type ServerDeletion struct {
	Volumes     []DeletedVolume     `json:"volumes"`
	FloatingIPs []DeletedFloatingIP `json:"floating_ips"`
}

// DeletedVolume is a volume of a server that is to be deleted.
type DeletedVolume struct {
	ID        string `json:"id" format:"uuid"`
	Name      string `json:"name" doc:"Empty if it has none, or Cinder does not show it."`
	IsDeleted bool   `json:"deleted" doc:"Whether it is deleted, too. Cinder keeps one that has snapshots."`
}

// DeletedFloatingIP is a floating IP of a server that is to be deleted.
type DeletedFloatingIP struct {
	ID        string `json:"id" format:"uuid"`
	Address   string `json:"address" minLength:"1"`
	IsDeleted bool   `json:"deleted" doc:"Whether it is released: an order made it for the server."`
}

// Deletion returns what a deletion of the server would delete, and changes nothing. It is ErrNeedsForce as the deletion
// is. A cloud without Cinder, or without floating IPs, has nothing of that kind.
func (s service) Deletion(ctx context.Context, a access, id string, force bool) (ServerDeletion, error) {
	server, err := s.ownServer(ctx, a, id)
	if err != nil {
		return ServerDeletion{}, err
	}
	action := actions.Action{ActionRequest: domain.ActionRequest{Action: domain.Delete}, Force: force}
	if server.Instance != nil && !action.MayDelete(server.Instance.Origin) {
		return ServerDeletion{}, actions.ErrNeedsForce
	}
	out := ServerDeletion{Volumes: []DeletedVolume{}, FloatingIPs: []DeletedFloatingIP{}}
	group, reading := errgroup.WithContext(ctx)
	group.Go(func() error {
		volumes, err := s.Volumes(reading, a, id)
		for _, v := range volumes {
			out.Volumes = append(out.Volumes, DeletedVolume{v.ID, v.Name, v.DeleteOnTermination})
		}
		return unlessUnsupported(err)
	})
	group.Go(func() error {
		floating, err := a.cloud.ServerFloatingIPs(reading, server.ID)
		for _, f := range floating {
			out.FloatingIPs = append(out.FloatingIPs, DeletedFloatingIP{f.ID, f.Address, f.IsReleasedWith(server)})
		}
		return unlessUnsupported(err)
	})
	return out, group.Wait()
}

func unlessUnsupported(err error) error {
	if apperr.CodeOf(err) == apperr.Unsupported {
		return nil
	}
	return err
}
