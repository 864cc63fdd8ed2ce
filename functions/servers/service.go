package servers

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// session is the part of OpenStack that this function needs.
type session interface {
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
	Server(ctx context.Context, id string) (domain.Server, error)
	StartServer(ctx context.Context, id string) error
	UnshelveServer(ctx context.Context, id string) error
	StopServer(ctx context.Context, id string) error
	RebootServer(ctx context.Context, id string, hard bool) error
	DeleteServer(ctx context.Context, id string) error
	RebuildServer(ctx context.Context, id string, r domain.Rebuild, fromVolume bool) error
	Actions(ctx context.Context, serverID string) ([]domain.Action, error)
}

// instanceStore is the part of the database that this function needs.
type instanceStore interface {
	Tracked(ctx context.Context, projectID string, serverIDs []string) (map[string]domain.Tracked, error)
	ListTracked(ctx context.Context, projectID, marker string, limit int) ([]domain.Tracked, error)
	Named(ctx context.Context, projectID string, ids []string) (map[string]domain.Tracked, error)
	Change(ctx context.Context, known []domain.Instance) (told int, err error)
	Connect(ctx context.Context, wanted domain.Instance) (instance domain.Instance, made bool, err error)
	MarkReusable(ctx context.Context, projectID, id string, reusable bool) (marked domain.Instance, found bool, err error)
	Disconnect(ctx context.Context, projectID string, id, connection uuid.UUID) (done bool, err error)
	LetGo(ctx context.Context, projectID, id string, connection uuid.UUID) (gone bool, err error)
	Agent(ctx context.Context, projectID string, instance uuid.UUID) (*domain.Agent, error)
	Through(ctx context.Context, through domain.Through, limit int, marker string) ([]domain.Instance, error)
	Managed(ctx context.Context, through domain.Through, ids []string) ([]domain.Instance, error)
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

// inRegion is the same service in a region of the catalog; "" is the one of this process. Only reading goes on there: instances are
// followed in the one region of this process.
func (s service) inRegion(region string) service {
	s.cloud = s.cloud.InRegion(region)
	return s
}

// Get reads one server of the caller's project, by its own id or its instance's.
func (s service) Get(ctx context.Context, who domain.Identity, token domain.Secret, id string) (domain.Server, error) {
	targets, err := s.targets(ctx, who, []string{id})
	if err != nil {
		return domain.Server{}, err
	}
	t := targets[0]
	if t.serverID == "" {
		return domain.Server{}, apperr.New(apperr.NotFound, "the instance %s has no server", id)
	}
	server, err := s.read(ctx, s.cloud.As(token, who.ProjectID), who, t.serverID, t.tracked != nil)
	if t.tracked != nil {
		t.tracked.State = domain.StateOf(server.Status, server.Task) // what was stored may be older
		server.Instance = t.tracked
	}
	if t.tracked != nil && err == nil {
		server.Instance.Agent, err = s.instances.Agent(ctx, who.ProjectID, t.tracked.ID)
	}
	return server, err
}

// History reads what happened to a tracked server, the newest first, by its own id or its instance's; also to one that
// is deleted.
func (s service) History(
	ctx context.Context, who domain.Identity, connection uuid.UUID, id string, before int64, limit int,
) (instance uuid.UUID, found []domain.Event, err error) {
	project := who.ProjectID
	if connection == uuid.Nil {
		targets, err := s.targets(ctx, who, []string{id})
		if err != nil {
			return instance, nil, err
		}
		if targets[0].tracked == nil {
			return instance, nil, apperr.New(apperr.NotFound, "there is no instance %s, and no server of this id is tracked", id)
		}
		instance = targets[0].tracked.ID
	} else {
		through, err := s.through(ctx, who, connection)
		if err != nil {
			return instance, nil, err
		}
		managed, err := s.instances.Managed(ctx, through, []string{id})
		if err != nil {
			return instance, nil, err
		}
		if managed[0].ID == uuid.Nil {
			return instance, nil, notManaged(id)
		}
		project, instance = through.ProjectID, managed[0].ID
	}
	found, err = s.instances.History(ctx, project, instance, connection, before, limit, who.ProjectID)
	return instance, found, err
}

// read reads a server. To an admin Nova shows those of other projects, too, which are absent here as for everybody. One of another
// project that has not reached a cell yet Nova answers with 403, which would say that it exists.
// Of one that is tracked, and so is the project's, the refusal stands.
func (s service) read(ctx context.Context, cloud session, who domain.Identity, id string, tracked bool) (domain.Server, error) {
	server, err := cloud.Server(ctx, id)
	if err == nil && server.ProjectID != who.ProjectID || !tracked && apperr.CodeOf(err) == apperr.Forbidden {
		return domain.Server{}, apperr.New(apperr.NotFound, "nova: Instance %s could not be found.", id)
	}
	return server, err
}

// markTracked fills in which of the servers are tracked.
func (s service) markTracked(ctx context.Context, who domain.Identity, page []domain.Server) error {
	if len(page) == 0 {
		return nil
	}
	ids := make([]string, len(page))
	for i, server := range page {
		ids[i] = server.ID
	}
	tracked, err := s.instances.Tracked(ctx, who.ProjectID, ids)
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
