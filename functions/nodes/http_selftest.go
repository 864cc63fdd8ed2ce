package nodes

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// selfTestRoutes declares how admins test the isolation of reservable hosts.
func selfTestRoutes(api huma.API, h handler) {
	httpx.Register(api, huma.Operation{
		OperationID: "testNode", Method: http.MethodPost, Path: "/v1/nodes/{name}/self-test", Tags: tags,
		Middlewares: httpx.Before(auth.CanWrite), DefaultStatus: http.StatusOK,
		Summary: "Test whether reservable hosts are isolated",
		Responses: httpx.Answers(map[int]string{
			200: "The host, with what the test has found.",
			403: notChosen,
			404: notFound,
			409: "The host is not reservable, a lease has it, it is down, cordoned or full, no public image and " +
				"flavor fit it, or another self-test of it runs.",
		}),
	}, h.selfTest)
}

func (h handler) selfTest(ctx context.Context, in *NodePath) (*httpx.Value[Node], error) {
	who, token := auth.Caller(ctx)
	found, err := h.svc.SelfTest(ctx, who, token, in.Name)
	return &httpx.Value[Node]{Body: show(found, false)}, err
}

// NodeLease is the lease that has a host, or gets it next.
type NodeLease struct {
	ID            uuid.UUID `json:"id"`
	ReservationID uuid.UUID `json:"reservation_id"`
	ProjectID     string    `json:"project_id" minLength:"1" doc:"Whose it is."`
	Start         time.Time `json:"start"`
	End           time.Time `json:"end" doc:"With the time for cleaning."`
}

func showLease(a *domain.Allocation) *NodeLease {
	if a == nil {
		return nil
	}
	return &NodeLease{
		ID: a.LeaseID, ReservationID: a.ReservationID, ProjectID: a.ProjectID, Start: a.From.UTC(), End: a.Until.UTC(),
	}
}
