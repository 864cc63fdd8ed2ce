package pollinstances

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// deleter is a session that records the servers that it deletes.
type deleter struct {
	session
	project string
	deleted *[]string
}

func (d deleter) In(_ context.Context, projectID string) (session, error) {
	return deleter{project: projectID, deleted: d.deleted}, nil
}

func (d deleter) DeleteServer(_ context.Context, id string) error {
	*d.deleted = append(*d.deleted, d.project+"/"+id)
	if d.project == "read only" {
		return apperr.New(apperr.Forbidden, "no")
	}
	return nil
}

func (d deleter) Servers(context.Context, domain.ServerQuery) ([]domain.Server, bool, error) {
	return nil, false, nil
}

// oneOrder is a database with one order, whose instance has the server "own".
type oneOrder struct {
	orders.Store
	order     domain.Order
	published *[]string
}

func (o oneOrder) Get(context.Context, string, uuid.UUID) (domain.Order, error) { return o.order, nil }

func (o oneOrder) MarkDuplicate(context.Context, domain.Order, domain.CreateCall, string) (bool, error) {
	return true, nil
}

func (o oneOrder) PublishUnexpected(_ context.Context, _ domain.Instance, s domain.Server) (bool, error) {
	*o.published = append(*o.published, s.ID)
	return true, nil
}

// TestRemoveExtras deletes servers that the order itself made twice, each in its own project, until the account turns
// out to be read-only there. Others are reported.
func TestRemoveExtras(t *testing.T) {
	t.Parallel()
	var deleted, published []string
	order := domain.Order{ID: uuid.New(), Status: domain.OrderRunning, CallsRecorded: true}
	i := domain.Instance{ID: uuid.New(), ServerID: "own"}
	call := domain.CreateCall{ID: uuid.New(), InstanceID: i.ID, Name: "web", BeganAt: time.Now(), Until: time.Now()}
	order.Instances, order.Calls = []domain.Instance{i}, []domain.CreateCall{call}
	server := func(id, project string, more ...string) domain.Server {
		return domain.Server{
			ID: id, ProjectID: project, Name: "web", Status: "ACTIVE", CreatedAt: time.Now(),
			Tags: append([]string{i.ID.String(), domain.OrderTag(order.ID)}, more...),
		}
	}
	s := &service{
		orders: oneOrder{order: order, published: &published},
		cloud: newSessions(func(context.Context) (session, error) {
			return deleter{deleted: &deleted}, nil
		}),
		wake: func() {},
	}
	s.removeExtras(t.Context(), []domain.Server{
		server("twice", "p", domain.CallTag(call.ID)), server("copied", "p"),
		server("a", "read only", domain.CallTag(call.ID)), server("b", "read only", domain.CallTag(call.ID)),
	})
	if diff := cmp.Diff([]string{"p/twice", "read only/a"}, deleted); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"copied"}, published); diff != "" {
		t.Error(diff)
	}
}
