package servers

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// session is the part of OpenStack that this function needs.
type session interface {
	actions.Cloud
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
	Actions(ctx context.Context, serverID string) ([]domain.LoggedAction, error)
}

// instanceStore is the part of the database that this function needs.
type instanceStore interface {
	actions.Instances
	Tracked(ctx context.Context, projectID string, serverIDs []string) (map[string]domain.Tracked, error)
	ListTracked(ctx context.Context, projectID, marker string, limit int) ([]domain.Tracked, error)
	ListManaged(ctx context.Context, filter domain.Filter, limit int, marker string) ([]domain.Instance, error)
	Find(ctx context.Context, filter domain.Filter, ids []string) ([]domain.Instance, error)
	MarkReusable(ctx context.Context, projectID, id string, reusable bool) (marked domain.Instance, found bool, err error)
	Disconnect(ctx context.Context, filter domain.Filter, id uuid.UUID) (done bool, err error)
	WasDisconnected(ctx context.Context, filter domain.Filter, id string) (was bool, err error)
	Agent(ctx context.Context, projectID string, instance uuid.UUID) (*domain.Agent, error)
	History(ctx context.Context, projectID string, instance, connection uuid.UUID, before int64, limit int, reader string) ([]domain.Event, error)
}

// openStack opens sessions, in the region of this process or another one of the catalog.
type openStack interface {
	As(token domain.Secret, scope string) session
	InRegion(region string) openStack
}

type service struct {
	cloud       openStack
	instances   instanceStore
	connections connectionStore
	actions     actionStore
	keyed       keyedStore
	agents      agents
	wake        func(functions ...string)
}

// inRegion is the same service in a region of the catalog; "" is the one of this process. Only reading goes on there:
// instances are followed in the one region of this process.
func (s service) inRegion(region string) service {
	s.cloud = s.cloud.InRegion(region)
	return s
}

// Get reads one server, by its own id or its instance's: as Nova shows it now, or where only run-connections can ask,
// as it was last seen.
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
		server = lastSeen(i)
	case isTracked:
		server, err = actions.ReadServer(ctx, a.cloud, i.ServerID, a.ProjectID, true)
		server.Instance = trackedAs(i)
		server.Instance.State = domain.StateOf(server.Status, server.Task) // what was stored may be older
	default:
		return actions.ReadServer(ctx, a.cloud, id, a.ProjectID, false)
	}
	if err == nil {
		server.Instance.Agent, err = s.instances.Agent(ctx, a.ProjectID, i.ID)
	}
	return server, err
}

// lastSeen is an instance's server as it was last seen.
func lastSeen(i domain.Instance) domain.Server {
	server := domain.Server{
		ID: i.ServerID, Name: i.Name, Status: i.RawStatus, Addresses: i.Addresses, Zone: i.Spec.Zone, KeyName: i.KeyName,
		Flavor: domain.FlavorRef{
			ID: i.Spec.FlavorID, Name: i.Spec.FlavorName, VCPUs: i.Spec.VCPUs, RAMMB: i.Spec.RAMMB, DiskGB: i.Spec.DiskGB,
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

// History reads what happened to a tracked server, the newest first, by its own id or its instance's; also to one that
// is deleted.
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

// markTracked fills in which of the servers are tracked.
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
			// Nova has just said how the server is; what was stored may be older.
			t.State = domain.StateOf(page[i].Status, page[i].Task)
			page[i].Instance = &t
		}
	}
	return nil
}
