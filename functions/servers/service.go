package servers

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// session is the part of OpenStack that this function needs.
type session interface {
	actions.Cloud
	volumeCloud
	changeCloud
	networkCloud
	floatingIPCloud
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
	lookup.Images
	Flavors(context.Context) ([]domain.Flavor, error)
	ServerGroups(context.Context) ([]domain.ServerGroup, error)
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
	i, isTracked, err := s.withServer(ctx, a, id)
	switch {
	case err != nil:
		return server, err
	case a.cloud == nil && !isTracked:
		return server, a.notFound(id)
	case a.cloud == nil:
		server = storedServer(i)
	case isTracked:
		server, err = actions.ReadServer(ctx, a.cloud, i.ServerID, a.ProjectID, true)
		server.Instance = trackedAs(i)
		server.Instance.State = domain.StateOf(server.Status, server.Task) // the stored one may be older
	default:
		server, err = actions.ReadServer(ctx, a.cloud, id, a.ProjectID, false)
	}
	state := domain.StateOf(server.Status, server.Task)
	if server.Instance != nil {
		state = server.Instance.State
	}
	server.AllowedActions = server.Allows(state)
	if err == nil && isTracked {
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
			server.Image.Name, server.LoginUser = image.Name, image.LoginUser
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
		if server.Image == nil && volume.IsBootable && server.LoginUser == "" {
			server.LoginUser = volume.LoginUser
		}
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

// access is who acts, and how OpenStack is reached for it.
type access struct {
	domain.Access

	cloud session // nil when only run-connections can decrypt the delegation
}

// access resolves who acts: the caller with its own token, or through a connection (zero = none). The region ("" =
// the one of this process) is for the caller's own requests.
func (s service) access(
	ctx context.Context, who domain.Identity, token domain.Secret, connection uuid.UUID, region string,
) (access, error) {
	if connection == uuid.Nil {
		return access{domain.OwnAccess(who), s.session(token, who.ProjectID, region)}, nil
	}
	c, now, err := s.connections.Usable(ctx, who, connection)
	return access{domain.DelegatedAccess(who, c, now), nil}, err
}

// authorize rejects an action that the connection does not permit. With the caller's own token Nova decides.
func (a access) authorize(action domain.Action) error {
	if permission, ok := domain.PermissionFor(action); ok {
		return a.Permits(permission)
	}
	return a.Permits()
}

// notFound is the error for a server that the caller does not have.
func (a access) notFound(id string) error {
	if a.cloud == nil {
		return apperr.New(apperr.NotFound, "the connection has no server and no instance %s", id)
	}
	return apperr.New(apperr.NotFound, "there is no instance %s, and no server of this id is tracked", id)
}

// find returns an instance by its own id or its server's; the zero value when there is no such instance.
func (s service) find(ctx context.Context, a access, id string) (domain.Instance, error) {
	found, err := s.instances.Find(ctx, a.Filter(), []string{id})
	if err != nil {
		return domain.Instance{}, err
	}
	return found[0], nil
}

// withServer is find for what needs the instance's server.
func (s service) withServer(ctx context.Context, a access, id string) (i domain.Instance, isTracked bool, err error) {
	if i, err = s.find(ctx, a, id); err == nil && i.ID != uuid.Nil && i.ServerID == "" {
		err = apperr.New(apperr.NotFound, "the instance %s has no server", id)
	}
	return i, i.ID != uuid.Nil, err
}

// connecting is the result of connecting a server: its instance, or the action by which run-connections connects it.
type connecting struct {
	instance *domain.Instance
	made     bool // it was not tracked before
	action   domain.DelegatedAction
}

// Connect tracks an existing server of the project, as the instance with the id given (zero = any).
func (s service) Connect(ctx context.Context, a access, serverID string, id uuid.UUID) (out connecting, err error) {
	if err := a.authorize(domain.Connect); err != nil {
		return out, err
	}
	if a.cloud == nil {
		action := a.newAction(newActionRequest(domain.Connect, false, false), id)
		action.ServerID = serverID
		if out.instance, out.action, err = s.actions.Connect(ctx, action); err == nil && out.instance == nil {
			s.wake("deliver-events", a.worker())
		}
		return out, err
	}
	now, err := s.connections.Now(ctx) // before Nova is read
	if err != nil {
		return out, err
	}
	wanted := domain.Instance{ProjectID: a.ProjectID, ID: id, SeenAt: now}
	actor := a.Actor().Doing(domain.Connect, uuid.Nil)
	instance, made, err := s.engine().Connect(ctx, a.cloud, serverID, a.ProjectID, wanted, actor)
	if err == nil {
		s.wake("deliver-events", a.worker())
	}
	return connecting{instance: &instance, made: made}, err
}

// Disconnect stops tracking a server, which stays as it is. It is no error for an instance that is disconnected
// already or whose server is deleted, but for a server that was never tracked.
func (s service) Disconnect(ctx context.Context, a access, id string) error {
	if err := a.authorize(domain.Disconnect); err != nil {
		return err
	}
	i, err := s.find(ctx, a, id)
	switch {
	case err != nil:
		return err
	case i.ID == uuid.Nil:
		wasTracked, err := s.instances.WasDisconnected(ctx, a.Filter(), id)
		if err == nil && !wasTracked {
			err = a.notFound(id)
		}
		return err
	case i.LeaseID != uuid.Nil:
		return apperr.New(apperr.Conflict, "the server is in lease %s, which would not end it then: end the lease "+
			"first, by DELETE /v1/leases/%[1]s, with ?on_end=none to leave the server as it is", i.LeaseID)
	case i.ServerID == "" && i.State != domain.InstanceDeleted:
		return actions.ErrNoServer
	}
	ctx = domain.WithActor(ctx, a.Actor().Doing(domain.Disconnect, uuid.Nil))
	isDone, err := s.instances.Disconnect(ctx, a.Filter(), i.ID)
	if isDone {
		s.wake("deliver-events")
	}
	return err
}

// MarkReusable reports whether orders with reuse may use a server of the caller's project. A user of the connection
// that manages it finds no such server, unless it is of the same project.
func (s service) MarkReusable(ctx context.Context, a access, id string, reusable bool) (domain.Instance, error) {
	if err := a.authorize(domain.Connect); err != nil {
		return domain.Instance{}, err
	}
	marked, found, err := s.instances.MarkReusable(ctx, a.ProjectID, id, reusable)
	if err != nil || found {
		return marked, err
	}
	i, err := s.find(ctx, a, id)
	switch {
	case err != nil:
		return marked, err
	case i.ID != uuid.Nil && i.ConnectionID == uuid.Nil:
		return marked, apperr.New(apperr.Conflict,
			"the server %s is not managed through a connection: only orders through one use idle servers", id)
	}
	return marked, apperr.New(apperr.NotFound, "the project has no server %s that is managed through a connection", id)
}
