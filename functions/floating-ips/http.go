package floatingips

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

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	tags := []string{"floating-ips"}
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "listFloatingIPs", Method: http.MethodGet, Path: "/v1/floating-ips", Tags: tags,
		Middlewares: reads, Summary: "List the project's floating IPs",
		Responses: httpx.Answers(map[int]string{200: "A page of floating IPs, by their ids."}),
	}, h.list)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "createFloatingIP", Method: http.MethodPost, Path: "/v1/floating-ips",
		DefaultStatus: http.StatusCreated, Tags: tags, Middlewares: writes, Summary: "Create a floating IP",
		Responses: httpx.Answers(map[int]string{
			201: "The floating IP, which is free.",
			409: "Several external networks have the name, all addresses are in use, or the one requested is.",
		}),
	}), h.create)
	httpx.Register(api, huma.Operation{
		OperationID: "getFloatingIP", Method: http.MethodGet, Path: "/v1/floating-ips/{id}", Tags: tags,
		Middlewares: reads, Summary: "Show a floating IP",
		Responses: httpx.Answers(map[int]string{200: "The floating IP.", 404: notFound}),
	}, h.get)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteFloatingIP", Method: http.MethodDelete, Path: "/v1/floating-ips/{id}", Tags: tags,
		Middlewares: writes, Summary: "Delete a floating IP",
		Responses: httpx.Answers(map[int]string{
			204: "Others may get the address now.", 404: notFound, 409: "It is attached, and `force` is not given.",
		}),
	}, h.delete)
}

const notFound = "The project has no floating IP of this id."

// FloatingIPPath is the path of one. It is exported because huma ignores embedded structs that are not.
type FloatingIPPath struct {
	ID httpx.ID `path:"id" example:"7c1a2f0e-3d54-4b8e-9a61-0f2d5c7b8e93" doc:"The floating IP's id."`
}

// FloatingIPRequest is the body of POST /v1/floating-ips.
type FloatingIPRequest struct {
	Network     string `json:"network,omitempty" maxLength:"255" doc:"An external network, by id or unique name."`
	Description string `json:"description,omitempty" maxLength:"200" doc:"What it is for."`
	Address     string `json:"address,omitempty" format:"ipv4" doc:"An address of the network; any without it."`
}

// Resolve implements huma.Resolver.
func (in *FloatingIPRequest) Resolve(huma.Context) (faults []error) {
	for _, field := range [][2]string{{"network", in.Network}, {"description", in.Description}} {
		if err := domain.CheckStorable(field[0], field[1]); err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

// FloatingIP is a floating IP as Neutron shows it.
type FloatingIP struct {
	ID           string    `json:"id" format:"uuid"`
	Address      string    `json:"address" minLength:"1"`
	NetworkID    string    `json:"network_id" doc:"The external network."`
	Description  string    `json:"description"`
	Status       string    `json:"status" doc:"Neutron's own: ACTIVE, DOWN (also while it is free) or ERROR."`
	PortID       *string   `json:"port_id" doc:"The port that it is attached to; null if it is free."`
	FixedAddress *string   `json:"fixed_address" doc:"The address of the port; null if it is free."`
	ServerID     *string   `json:"server_id" doc:"The server that has the port; null if no server has it."`
	CreatedAt    time.Time `json:"created_at"`
	UpdatedAt    time.Time `json:"updated_at"`
}

// FloatingIPPage is a page of floating IPs.
type FloatingIPPage struct {
	FloatingIPs []FloatingIP `json:"floating_ips" maxItems:"1000"`

	Next *string `json:"next" pattern:"^/v1/floating-ips\\?" doc:"The URL of the next page, without a host, or null."`
}

func show(f domain.FloatingIP) FloatingIP {
	return FloatingIP{
		ID: f.ID, Address: f.Address, NetworkID: f.NetworkID, Description: withoutMark(f.Description),
		Status: f.Status, PortID: orNull(f.PortID), FixedAddress: orNull(f.FixedAddress),
		ServerID: orNull(f.ServerID), CreatedAt: f.CreatedAt, UpdatedAt: f.UpdatedAt,
	}
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

type handler struct{ svc service }

type listInput struct {
	httpx.PageRequest
	Address  string   `query:"address" example:"203.0.113.7" doc:"Only the floating IP with this address."`
	Attached string   `query:"attached" enum:"true,false" example:"false" doc:"Only those of ports, or free ones."`
	Marker   httpx.ID `query:"marker" example:"7c1a2f0e-3d54-4b8e-9a61-0f2d5c7b8e93" doc:"The last id before."`
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[FloatingIPPage], error) {
	who, token := auth.Caller(ctx)
	q := domain.FloatingIPQuery{Address: in.Address, Limit: in.Limit}
	if in.Attached != "" {
		q.IsAttached = new(in.Attached == "true")
	}
	if in.Marker.UUID != uuid.Nil {
		q.Marker = in.Marker.String()
	}
	found, marker, err := h.svc.List(ctx, who, token, q)
	out := FloatingIPPage{FloatingIPs: httpx.Each(found, show)}
	if marker != "" {
		out.Next = httpx.NextPage(ctx, marker)
	}
	return &httpx.Value[FloatingIPPage]{Body: out}, err
}

type createInput struct{ Body FloatingIPRequest }

type createOutput struct {
	Location string `header:"Location" doc:"Where it is." pattern:"^/v1/floating-ips/[0-9a-f-]{36}$"`
	Body     FloatingIP
}

func (h handler) create(ctx context.Context, in *createInput) (*createOutput, error) {
	who, token := auth.Caller(ctx)
	made, err := h.svc.Create(ctx, who, token, domain.FloatingIPRequest{
		NetworkID: in.Body.Network, Description: in.Body.Description, Address: in.Body.Address,
	})
	if err != nil {
		return nil, err
	}
	return &createOutput{"/v1/floating-ips/" + made.ID, show(made)}, nil
}

func (h handler) get(ctx context.Context, in *FloatingIPPath) (*httpx.Value[FloatingIP], error) {
	who, token := auth.Caller(ctx)
	found, err := h.svc.as(who, token).FloatingIP(ctx, in.ID.String())
	return &httpx.Value[FloatingIP]{Body: show(found)}, err
}

type deleteInput struct {
	FloatingIPPath
	Force bool `query:"force" default:"false" doc:"Delete it although it is attached."`
}

func (h handler) delete(ctx context.Context, in *deleteInput) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.Delete(ctx, who, token, in.ID.String(), in.Force)
}
