package servers

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// connectionStore is where connections are looked up.
type connectionStore interface {
	Usable(ctx context.Context, who domain.Identity, id uuid.UUID) (found domain.Connection, now time.Time, err error)
	Now(context.Context) (time.Time, error)
}

// actionStore keeps what run-connections is asked to do.
type actionStore interface {
	Ask(ctx context.Context, wanted domain.DelegatedAction) (domain.DelegatedAction, error)
	Sent(ctx context.Context, wanted domain.DelegatedAction) (domain.DelegatedAction, error)
	Connect(ctx context.Context, wanted domain.DelegatedAction) (known *domain.Instance, action domain.DelegatedAction, err error)
	Get(ctx context.Context, through domain.Through, id uuid.UUID) (domain.DelegatedAction, error)
}

// through finds the connection that the caller names, if the caller may act through it.
func (s service) through(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.Through, error) {
	c, _, err := s.connections.Usable(ctx, who, id)
	return domain.Through{ProjectID: c.ProjectID, ConnectionID: c.ID}, err
}

// permitted is the same, if the connection has not ended and permits what is wanted.
func (s service) permitted(ctx context.Context, who domain.Identity, id uuid.UUID, wanted ...domain.Permission) (domain.Through, error) {
	c, now, err := s.connections.Usable(ctx, who, id)
	if err == nil {
		err = c.Permits(now, wanted...)
	}
	return domain.Through{ProjectID: c.ProjectID, ConnectionID: c.ID}, err
}

// ListThrough reads one page of what is managed through the connection, the newest first: what was last seen of it. marker is what
// the next page starts after, "" at the end.
func (s service) ListThrough(ctx context.Context, who domain.Identity, connection uuid.UUID, limit int, after string) (page []domain.Server, marker string, err error) {
	through, err := s.through(ctx, who, connection)
	if err != nil {
		return nil, "", err
	}
	found, err := s.instances.Through(ctx, through, limit+1, after)
	if err != nil {
		return nil, "", err
	}
	page = make([]domain.Server, min(limit, len(found)))
	for n := range page {
		page[n] = lastSeen(found[n])
	}
	if len(found) > limit {
		marker = page[limit-1].ID
	}
	return page, marker, nil
}

// GetThrough reads what was last seen of one server that is managed through the connection.
func (s service) GetThrough(ctx context.Context, who domain.Identity, connection uuid.UUID, id string) (domain.Server, error) {
	through, err := s.through(ctx, who, connection)
	if err != nil {
		return domain.Server{}, err
	}
	found, err := s.instances.Managed(ctx, through, []string{id})
	switch {
	case err != nil:
		return domain.Server{}, err
	case found[0].ID == uuid.Nil:
		return domain.Server{}, notManaged(id)
	case found[0].ServerID == "":
		return domain.Server{}, apperr.New(apperr.NotFound, "the instance %s has no server", id)
	}
	server := lastSeen(found[0])
	server.Instance.Agent, err = s.instances.Agent(ctx, through.ProjectID, found[0].ID)
	return server, err
}

func notManaged(id string) error {
	return apperr.New(apperr.NotFound, "the connection has no server and no instance %s", id)
}

// lastSeen is an instance's server as it was last seen.
func lastSeen(i domain.Instance) domain.Server {
	server := domain.Server{
		ID: i.ServerID, Name: i.Name, Status: i.RawStatus, Addresses: i.Addresses, Zone: i.Spec.Zone, KeyName: i.KeyName,
		Flavor:    domain.FlavorRef{ID: i.Spec.FlavorID, Name: i.Spec.FlavorName, VCPUs: i.Spec.VCPUs, RAMMB: i.Spec.RAMMB, DiskGB: i.Spec.DiskGB},
		CreatedAt: i.CreatedAt.UTC(), UpdatedAt: i.UpdatedAt.UTC(),
		Instance: &domain.Tracked{ID: i.ID, ServerID: i.ServerID, State: i.State, Origin: i.Origin},
	}
	if i.ConnectionID != uuid.Nil {
		server.Instance.ConnectionID = &i.ConnectionID
	}
	if i.Spec.ImageID != "" {
		server.Image = &domain.ImageRef{ID: i.Spec.ImageID}
	}
	if i.State == domain.InstanceError && i.Problem != nil {
		server.Fault = &domain.Fault{Message: i.Problem.Detail, Created: i.UpdatedAt.UTC()}
	}
	return server
}

// allowed refuses an image that the connection does not allow. The one that a server has run-connections looks up, and refuses, too.
func (s service) allowed(ctx context.Context, who domain.Identity, id uuid.UUID, image string) error {
	c, _, err := s.connections.Usable(ctx, who, id)
	if err != nil {
		return err
	}
	return c.Limits.CheckImage("server_image", image)
}

// Action reads what has become of an action through the connection.
func (s service) Action(ctx context.Context, who domain.Identity, connection, id uuid.UUID) (domain.DelegatedAction, error) {
	through, err := s.through(ctx, who, connection)
	if err != nil {
		return domain.DelegatedAction{}, err
	}
	return s.actions.Get(ctx, through, id)
}

// ask has one thing done to servers that are managed through a connection: run-connections does it.
func (s service) ask(ctx context.Context, who domain.Identity, w wish, ids []string) ([]outcome, error) {
	permission, _ := domain.PermissionFor(w.Verb)
	through, err := s.permitted(ctx, who, w.connection, permission)
	if err == nil && w.deploy != nil && w.deploy.serverImage != "" {
		err = s.allowed(ctx, who, w.connection, w.deploy.serverImage)
	}
	if err != nil {
		return nil, err
	}
	found, err := s.instances.Managed(ctx, through, ids)
	if err != nil {
		return nil, err
	}
	targets := make([]target, len(ids))
	for n, i := range found {
		targets[n] = target{given: ids[n], serverID: i.ServerID}
	}
	if err := distinct(targets); err != nil {
		return nil, err
	}
	outcomes := make([]outcome, len(ids))
	for n, i := range found {
		outcomes[n] = s.askFor(ctx, who, through, w, ids[n], i)
	}
	if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.Changed }) {
		s.wake("run-connections", "deliver-events")
	}
	return outcomes, nil
}

// askFor has it done to one of them. What its state allows is decided when it is done, by what Nova then says.
func (s service) askFor(ctx context.Context, who domain.Identity, through domain.Through, w wish, given string, i domain.Instance) outcome {
	o := outcome{ID: given, State: i.State}
	if i.ID == uuid.Nil {
		o.err = notManaged(given)
		return o
	}
	wanted := domain.DelegatedAction{
		ID: w.key.id, ProjectID: through.ProjectID, ConnectionID: through.ConnectionID, InstanceID: i.ID, UserID: who.UserID, Ask: w.Ask,
		Actor: domain.ActorOf(who, through.ConnectionID),
	}
	if wanted.ID == uuid.Nil {
		wanted.ID = uuid.Must(uuid.NewV7())
	} else {
		wanted.BodySHA256 = w.key.of(i.ServerID)
		stored, err := s.actions.Sent(ctx, wanted)
		if err != nil || stored.Repeated {
			o.err = err
			return o.asked(stored)
		}
	}
	switch {
	case i.State == domain.InstanceDeleted && w.Verb == domain.Delete:
		return o
	case i.State == domain.InstanceDeleted:
		o.err = w.Check(i.State)
	case i.ServerID == "":
		o.err = noServer()
	case !w.mayDelete(i.Origin):
		o.err = notOurs()
	}
	if o.err != nil {
		return o
	}
	var stored domain.DelegatedAction
	if w.Verb == domain.Deploy {
		stored, o.err = s.askDeploy(ctx, wanted, *w.deploy)
	} else {
		stored, o.err = s.actions.Ask(ctx, wanted)
	}
	return o.asked(stored)
}

// asked is the outcome of what run-connections was asked for.
func (o outcome) asked(stored domain.DelegatedAction) outcome {
	if o.err == nil {
		o.ActionID, o.Changed, o.repeated = &stored.ID, true, stored.Repeated
	}
	return o
}

// ConnectThrough has a server of the connection's project taken under management, as the instance with the id given (zero = any). One
// that is managed through the connection already is given as it is, and needs no action.
func (s service) ConnectThrough(
	ctx context.Context, who domain.Identity, connection uuid.UUID, serverID string, id uuid.UUID,
) (known *domain.Instance, action domain.DelegatedAction, err error) {
	ask := domain.Ask{Verb: domain.Connect}
	permission, _ := domain.PermissionFor(ask.Verb)
	through, err := s.permitted(ctx, who, connection, permission)
	if err != nil {
		return nil, action, err
	}
	known, action, err = s.actions.Connect(ctx, domain.DelegatedAction{
		ID: uuid.Must(uuid.NewV7()), ProjectID: through.ProjectID, ConnectionID: connection, InstanceID: id, ServerID: serverID, UserID: who.UserID, Ask: ask,
		Actor: domain.ActorOf(who, connection),
	})
	if err == nil && known == nil {
		s.wake("run-connections", "deliver-events")
	}
	return known, action, err
}

// DisconnectThrough lets an instance go that is managed through the connection, at once: Nova is not told.
func (s service) DisconnectThrough(ctx context.Context, who domain.Identity, connection uuid.UUID, id string) error {
	through, err := s.permitted(ctx, who, connection)
	if err != nil {
		return err
	}
	found, err := s.instances.Managed(ctx, through, []string{id})
	switch {
	case err != nil:
		return err
	case found[0].ID == uuid.Nil:
		return s.wasLetGo(ctx, through.ProjectID, id, connection)
	}
	return s.letGo(ctx, who, through.ProjectID, found[0], connection)
}
