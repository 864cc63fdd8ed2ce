package servers

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// session is the part of OpenStack that this function needs.
type session interface {
	actions.Cloud
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
	Image(ctx context.Context, id string) (domain.Image, error)
	ServerGroups(context.Context) ([]domain.ServerGroup, error)
	Volume(ctx context.Context, id string) (domain.Volume, error)
	ConsoleLog(ctx context.Context, id string, lines int) (string, error)
	RemoteConsole(ctx context.Context, id string, kind domain.ConsoleType) (domain.Secret, error)
}

type service struct {
	session     func(token domain.Secret, scope, region string) session
	instances   postgres.Instances
	connections postgres.Connections
	actions     postgres.Actions
	keyed       postgres.KeyedActions
	agents      agents
	wake        func(functions ...string)
}

// Get returns one server, by its own id or its instance's: as Nova shows it, or through a connection as it is stored.
func (s service) Get(ctx context.Context, a access, id string) (server domain.Server, err error) {
	i, err := s.find(ctx, a, id)
	isTracked := i.ID != uuid.Nil
	switch {
	case err != nil:
		return server, err
	case isTracked && i.ServerID == "":
		return server, apperr.New(apperr.NotFound, "the instance %s has no server", id)
	case a.cloud == nil && !isTracked:
		return server, a.notFound(id)
	case a.cloud == nil:
		server = storedServer(i)
	case isTracked:
		server, err = actions.ReadServer(ctx, a.cloud, i.ServerID, a.ProjectID, true)
		server.Instance = trackedAs(i)
		server.Instance.State = domain.StateOf(server.Status, server.Task) // the stored one may be older
	default:
		return actions.ReadServer(ctx, a.cloud, id, a.ProjectID, false)
	}
	if err == nil {
		server.Instance.Agent, err = s.instances.Agent(ctx, a.ProjectID, i.ID)
	}
	return server, err
}

// namesTime bounds how long a response waits for names.
const namesTime = 3 * time.Second

// fillNames adds the names of a server's image, server groups and volumes. Those that cannot be read stay ids.
func fillNames(ctx context.Context, cloud session, server *domain.Server) {
	ctx, cancel := context.WithTimeout(ctx, namesTime)
	defer cancel()
	if server.Image != nil {
		if image, err := cloud.Image(ctx, server.Image.ID); err == nil {
			server.Image.Name = image.Name
		}
	}
	if len(server.ServerGroups) > 0 {
		all, err := cloud.ServerGroups(ctx)
		for n, group := range server.ServerGroups {
			at := slices.IndexFunc(all, func(g domain.ServerGroup) bool { return g.ID == group.ID })
			if err == nil && at >= 0 {
				server.ServerGroups[n].Name = all[at].Name
			}
		}
	}
	for n, v := range server.Volumes {
		volume, err := cloud.Volume(ctx, v.ID)
		if err != nil {
			return // the others would take as long
		}
		server.Volumes[n].Name = volume.Name
	}
}

// storedServer is an instance's server as the last poll stored it.
func storedServer(i domain.Instance) domain.Server {
	server := domain.Server{
		ID: i.ServerID, Name: i.Name, Status: i.RawStatus,
		Addresses: i.Addresses, Zone: i.Spec.Zone, KeyName: i.KeyName,
		Flavor: domain.FlavorRef{
			ID: i.Spec.FlavorID, Name: i.Spec.FlavorName, VCPUs: i.Spec.VCPUs, RAMMB: i.Spec.RAMMB,
			DiskGB: i.Spec.DiskGB,
		},
		CreatedAt: i.CreatedAt.UTC(), UpdatedAt: i.UpdatedAt.UTC(), Instance: trackedAs(i),
	}
	if i.Spec.ImageID != "" {
		server.Image = &domain.ImageRef{ID: i.Spec.ImageID}
	}
	if i.State == domain.InstanceError && i.Problem != nil {
		server.Fault = &domain.Fault{Message: i.Problem.Detail, Created: i.UpdatedAt.UTC()}
	}
	return server
}

// History returns the events of a tracked server, also of a deleted one, the newest first, by its own id or its
// instance's.
func (s service) History(
	ctx context.Context, a access, id string, before int64, limit int,
) (instance uuid.UUID, found []domain.Event, err error) {
	i, err := s.find(ctx, a, id)
	if err == nil && i.ID == uuid.Nil {
		err = a.notFound(id)
	}
	if err != nil {
		return instance, nil, err
	}
	found, err = s.instances.History(ctx, a.ProjectID, i.ID, a.Connection.ID, before, limit, a.Identity.ProjectID)
	return i.ID, found, err
}

// trackedAs is an instance as its server shows it.
func trackedAs(i domain.Instance) *domain.Tracked {
	t := &domain.Tracked{ID: i.ID, ServerID: i.ServerID, State: i.State, Origin: i.Origin}
	if i.ConnectionID != uuid.Nil {
		t.ConnectionID = &i.ConnectionID
	}
	if i.LeaseID != uuid.Nil {
		t.LeaseID = &i.LeaseID
	}
	return t
}

// markTracked fills in the instances of the servers that are tracked.
func (s service) markTracked(ctx context.Context, a access, page []domain.Server) error {
	if len(page) == 0 {
		return nil
	}
	ids := make([]string, len(page))
	for i, server := range page {
		ids[i] = server.ID
	}
	tracked, err := s.instances.Tracked(ctx, a.ProjectID, ids)
	if err != nil {
		return err
	}
	for i := range page {
		if t, ok := tracked[page[i].ID]; ok {
			t.State = domain.StateOf(page[i].Status, page[i].Task) // the stored one may be older
			page[i].Instance = &t
		}
	}
	return nil
}
