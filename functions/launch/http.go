package launch

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	tags, scoped := []string{"launch"}, httpx.Before(auth.CanRead)
	describe(api)
	httpx.Register(api, huma.Operation{
		OperationID: "listOrders", Method: http.MethodGet, Path: "/v1/launch", Tags: tags, Middlewares: scoped,
		Summary:   "List the project's orders",
		Responses: httpx.Answers(map[int]string{200: "A page of orders.", 404: ""}),
	}, h.list)
	httpx.Serve[launchInput, httpx.Value[Order]](api, httpx.Idempotent(huma.Operation{
		OperationID: "launch", Method: http.MethodPost, Path: "/v1/launch", DefaultStatus: http.StatusAccepted,
		Tags: tags, Middlewares: scoped,
		Summary: "Order one or more servers",
		Responses: httpx.Answers(map[int]string{
			200: "The order that this id already had, or with `dry_run=true` the report.",
			202: "The order is stored. Nova was asked for its servers, or run-connections is about to ask.",
			404: "", 409: "", 422: "", 501: "",
		}),
	}), h.launch)
	httpx.Register(api, huma.Operation{
		OperationID: "getOrder", Method: http.MethodGet, Path: "/v1/launch/{id}", Tags: tags, Middlewares: scoped,
		Summary:   "Show an order and its instances",
		Responses: httpx.Answers(map[int]string{200: "The order.", 404: "", 501: ""}),
	}, h.get)
}

type handler struct{ svc service }

type launchInput struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Only report what would make the launch fail."`
	Body   launchRequest

	order createOrder // of the body
}

// Resolve implements huma.Resolver.
func (in *launchInput) Resolve(huma.Context) (errs []error) {
	in.order, errs = in.Body.order()
	return errs
}

func (h handler) launch(ctx context.Context, in *launchInput) (httpx.Response, error) {
	who, token := auth.Caller(ctx)
	if id, isKeyed, _ := domain.AttemptFrom(ctx); isKeyed && in.Body.ID == "" {
		in.Body.ID = givenID(id.String())
		in.order, _ = in.Body.order() // which was checked
	}
	if !in.DryRun { // which reports a token that only reads, and stores nothing
		if err := auth.CanWrite(ctx); err != nil {
			return httpx.Response{}, err
		}
	}
	a, err := h.svc.access(ctx, who, token, in.order.connectionID)
	if err != nil {
		return httpx.Response{}, err
	}
	if in.DryRun {
		report, err := h.svc.DryRun(ctx, a, in.order)
		if err != nil {
			return httpx.Response{}, err
		}
		return httpx.JSON(http.StatusOK, report)
	}
	done, err := h.svc.Launch(ctx, a, in.order)
	if err != nil {
		return httpx.Response{}, err
	}
	return done.response()
}

func (l launched) response() (httpx.Response, error) {
	shown := show(l.order, l.related)
	shown.PrivateKey = l.privateKey.Reveal()
	if shown.Callback != nil {
		shown.Callback.Secret = l.callbackSecret.Reveal()
	}
	status := http.StatusOK
	if l.isFresh {
		status = http.StatusAccepted
	}
	resp, err := httpx.JSON(status, shown)
	if err != nil {
		return resp, err
	}
	resp.Header.Set("Location", location(l.order))
	if l.retryAfter > 0 {
		resp.Header.Set("Retry-After", strconv.Itoa(int(l.retryAfter/time.Second)+1))
	}
	return resp, nil
}

// location is the URL of the order in the Location header.
func location(o domain.Order) string {
	path := "/v1/launch/" + o.ID.String()
	if o.ConnectionID == uuid.Nil {
		return path
	}
	return path + "?connection_id=" + o.ConnectionID.String()
}

type listInput struct {
	Status       []domain.OrderStatus `query:"status" minItems:"1"`
	ConnectionID httpx.ID             `query:"connection_id" doc:"The connection that the orders were placed through."`
	httpx.Page
	Marker httpx.ID `query:"marker" doc:"The id of the last order of the page before."`
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[OrderPage], error) {
	who, token := auth.Caller(ctx)
	a, err := h.svc.access(ctx, who, token, in.ConnectionID.UUID)
	if err != nil {
		return nil, err
	}
	q := domain.OrderQuery{Limit: in.Limit, Marker: in.Marker.UUID}
	for _, status := range in.Status {
		q.Statuses = append(q.Statuses, string(status))
	}
	found, err := h.svc.List(ctx, a, q)
	if err != nil {
		return nil, err
	}
	page := OrderPage{Orders: make([]Order, len(found.orders))}
	for n, order := range found.orders {
		page.Orders[n] = show(order, found.related)
	}
	if found.hasMore {
		page.Next = in.Next(found.orders[len(found.orders)-1].ID.String())
	}
	return &httpx.Value[OrderPage]{Body: page}, nil
}

type getInput struct {
	ID           httpx.ID `path:"id" example:"0f8fad5b-d9cb-469f-a165-70867728950e" doc:"The order's id."`
	ConnectionID httpx.ID `query:"connection_id" doc:"The connection that the order was placed through."`
}

func (h handler) get(ctx context.Context, in *getInput) (*httpx.Value[Order], error) {
	who, token := auth.Caller(ctx)
	a, err := h.svc.access(ctx, who, token, in.ConnectionID.UUID)
	if err != nil {
		return nil, err
	}
	order, with, err := h.svc.Get(ctx, a, in.ID.UUID)
	return &httpx.Value[Order]{Body: show(order, with)}, err
}
