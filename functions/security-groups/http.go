package securitygroups

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const notFound = "The project has no security group of this id."

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	tags := []string{"security-groups"}
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "listSecurityGroups", Method: http.MethodGet, Path: "/v1/security-groups", Tags: tags,
		Middlewares: reads, Summary: "List the project's security groups",
		Responses: httpx.Answers(map[int]string{200: "A page of security groups, by name.", 501: ""}),
	}, h.list)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "createSecurityGroup", Method: http.MethodPost, Path: "/v1/security-groups",
		DefaultStatus: http.StatusCreated, Tags: tags, Middlewares: writes, Summary: "Create a security group",
		Responses: httpx.Answers(map[int]string{201: "The security group.", 501: ""}),
	}), h.create)
	httpx.Register(api, huma.Operation{
		OperationID: "getSecurityGroup", Method: http.MethodGet, Path: "/v1/security-groups/{id}", Tags: tags,
		Middlewares: reads, Summary: "Show a security group",
		Responses: httpx.Answers(map[int]string{200: "The security group with its rules.", 404: notFound, 501: ""}),
	}, h.get)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteSecurityGroup", Method: http.MethodDelete, Path: "/v1/security-groups/{id}", Tags: tags,
		Middlewares: writes, Summary: "Delete a security group",
		Responses: httpx.Answers(map[int]string{
			204: "It is deleted.", 404: notFound, 409: "A port has it, or it is the project's default.", 501: "",
		}),
	}, h.delete)
	add := huma.Operation{
		OperationID: "addSecurityGroupRule", Method: http.MethodPost, Path: "/v1/security-groups/{id}/rules",
		DefaultStatus: http.StatusCreated, Tags: tags, Middlewares: writes, Summary: "Add a rule to a security group",
		Responses: httpx.Answers(map[int]string{
			201: "The rule.", 404: notFound, 409: "Several security groups have the name of `remote_group`.",
			501: "",
		}),
	}
	schema := api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[SecurityGroupRule](), true, "")
	add.Responses["200"] = &huma.Response{
		Description: "The security group has the rule already.",
		Content:     map[string]*huma.MediaType{"application/json": {Schema: schema}},
	}
	httpx.Register(api, add, h.addRule)
	httpx.Register(api, huma.Operation{
		OperationID: "removeSecurityGroupRule", Method: http.MethodDelete,
		Path: "/v1/security-groups/{id}/rules/{rule_id}", Tags: tags, Middlewares: writes,
		Summary: "Remove a rule of a security group",
		Responses: httpx.Answers(map[int]string{
			204: "It is removed.", 404: "The project has no such security group, or that has no such rule.", 501: "",
		}),
	}, h.removeRule)
}

// SecurityGroupPath is the path of one. It is exported because huma ignores embedded structs that are not.
type SecurityGroupPath struct {
	ID httpx.ID `path:"id" example:"c1a3f0d2-5f0e-4b7c-9b7e-2a4d6c8e0f12" doc:"The security group's id."`
}

// SecurityGroupRequest is the body of POST /v1/security-groups.
type SecurityGroupRequest struct {
	Name        string `json:"name" minLength:"1" maxLength:"255" doc:"Neutron allows several of the same name."`
	Description string `json:"description,omitempty" maxLength:"255"`
}

// Resolve implements huma.Resolver.
func (in *SecurityGroupRequest) Resolve(huma.Context) (faults []error) {
	for _, field := range [][2]string{{"name", in.Name}, {"description", in.Description}} {
		if err := domain.CheckStorable(field[0], field[1]); err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

// SecurityGroupRule lets packets through.
type SecurityGroupRule struct {
	ID          string `json:"id" format:"uuid"`
	Direction   string `json:"direction" enum:"ingress,egress"`
	Ethertype   string `json:"ethertype" enum:"IPv4,IPv6"`
	Protocol    string `json:"protocol" doc:"As Neutron shows it; empty for any."`
	PortMin     *int   `json:"port_min,omitempty" doc:"Of ICMP the type. Absent for all."`
	PortMax     *int   `json:"port_max,omitempty" doc:"Of ICMP the code. Absent for all."`
	RemoteCIDR  string `json:"remote_cidr" doc:"Of the other side; empty for any, or with a remote_group."`
	RemoteGroup string `json:"remote_group" doc:"The id of the security group of the other side; empty for any."`
	Description string `json:"description"`
}

// SecurityGroupWithRules is a security group as Neutron shows it.
type SecurityGroupWithRules struct {
	ID          string              `json:"id" format:"uuid"`
	Name        string              `json:"name"`
	Description string              `json:"description"`
	Rules       []SecurityGroupRule `json:"rules"`
	CreatedAt   time.Time           `json:"created_at"`
	UpdatedAt   time.Time           `json:"updated_at"`
}

// SecurityGroupPage is a page of security groups.
type SecurityGroupPage struct {
	Groups []SecurityGroupWithRules `json:"security_groups" maxItems:"1000"`
	Next   *string                  `json:"next" pattern:"^/v1/security-groups\\?" doc:"The next page's URL, or null."`
}

func showRule(r domain.SecurityGroupRule) SecurityGroupRule { return SecurityGroupRule(r) }

func show(g domain.SecurityGroupRules) SecurityGroupWithRules {
	return SecurityGroupWithRules{
		ID: g.ID, Name: g.Name, Description: g.Description, Rules: httpx.Each(g.Rules, showRule),
		CreatedAt: g.CreatedAt, UpdatedAt: g.UpdatedAt,
	}
}

type handler struct{ svc service }

type listInput struct {
	httpx.PageRequest
	Name   string   `query:"name" example:"web" doc:"Only security groups whose name contains this text."`
	Marker httpx.ID `query:"marker" example:"c1a3f0d2-5f0e-4b7c-9b7e-2a4d6c8e0f12" doc:"The last id before."`
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[SecurityGroupPage], error) {
	who, token := auth.Caller(ctx)
	q := query{name: in.Name, limit: in.Limit}
	if in.Marker.UUID != uuid.Nil {
		q.marker = in.Marker.String()
	}
	found, marker, err := h.svc.List(ctx, who, token, q)
	out := SecurityGroupPage{Groups: httpx.Each(found, show)}
	if marker != "" {
		out.Next = httpx.NextPage(ctx, marker)
	}
	return &httpx.Value[SecurityGroupPage]{Body: out}, err
}

type createInput struct{ Body SecurityGroupRequest }

type createOutput struct {
	Location string `header:"Location" doc:"Where it is." pattern:"^/v1/security-groups/[0-9a-f-]{36}$"`
	Body     SecurityGroupWithRules
}

func (h handler) create(ctx context.Context, in *createInput) (*createOutput, error) {
	who, token := auth.Caller(ctx)
	made, err := h.svc.Create(ctx, who, token, in.Body.Name, in.Body.Description)
	if err != nil {
		return nil, err
	}
	return &createOutput{"/v1/security-groups/" + made.ID, show(made)}, nil
}

func (h handler) get(ctx context.Context, in *SecurityGroupPath) (*httpx.Value[SecurityGroupWithRules], error) {
	who, token := auth.Caller(ctx)
	found, err := h.svc.as(who, token).OwnSecurityGroup(ctx, in.ID.String())
	return &httpx.Value[SecurityGroupWithRules]{Body: show(found)}, err
}

func (h handler) delete(ctx context.Context, in *SecurityGroupPath) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.Delete(ctx, who, token, in.ID.String())
}

type addRuleInput struct {
	SecurityGroupPath
	Body SecurityGroupRuleRequest
}

type addRuleOutput struct {
	Status int
	Body   SecurityGroupRule
}

func (h handler) addRule(ctx context.Context, in *addRuleInput) (*addRuleOutput, error) {
	who, token := auth.Caller(ctx)
	rule, err := in.Body.rule()
	if err != nil {
		return nil, err
	}
	made, isNew, err := h.svc.AddRule(ctx, who, token, in.ID.String(), rule)
	if isNew {
		return &addRuleOutput{http.StatusCreated, showRule(made)}, err
	}
	return &addRuleOutput{http.StatusOK, showRule(made)}, err
}

type removeRuleInput struct {
	SecurityGroupPath
	RuleID httpx.ID `path:"rule_id" example:"9c1d2e3f-4a5b-4c6d-8e7f-0a1b2c3d4e5f" doc:"The rule's id."`
}

func (h handler) removeRule(ctx context.Context, in *removeRuleInput) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.RemoveRule(ctx, who, token, in.ID.String(), in.RuleID.String())
}

// SecurityGroupRuleRequest is the body of POST /v1/security-groups/{id}/rules.
type SecurityGroupRuleRequest struct {
	Direction   string `json:"direction,omitempty" enum:"ingress,egress" default:"ingress"`
	Ethertype   string `json:"ethertype,omitempty" enum:"IPv4,IPv6" doc:"That of remote_cidr by default, or IPv4."`
	Protocol    string `json:"protocol,omitempty" pattern:"^[a-z0-9-]{1,32}$" doc:"Such as tcp or icmp, or a number."`
	PortMin     *int   `json:"port_min,omitempty" minimum:"0" maximum:"65535" doc:"Of ICMP the type."`
	PortMax     *int   `json:"port_max,omitempty" minimum:"0" maximum:"65535" doc:"Of ICMP the code."`
	RemoteCIDR  string `json:"remote_cidr,omitempty" minLength:"2" maxLength:"49" doc:"Only from or to there."`
	RemoteGroup string `json:"remote_group,omitempty" minLength:"1" maxLength:"255" doc:"A security group."`
	Description string `json:"description,omitempty" maxLength:"255"`
}

// Resolve implements huma.Resolver.
func (in *SecurityGroupRuleRequest) Resolve(huma.Context) (faults []error) {
	for _, field := range [][2]string{{"remote_group", in.RemoteGroup}, {"description", in.Description}} {
		if err := domain.CheckStorable(field[0], field[1]); err != nil {
			faults = append(faults, err)
		}
	}
	if _, err := in.rule(); err != nil {
		faults = append(faults, err)
	}
	return faults
}

// rule is the rule that the request describes. Of protocols, and what goes with them, Neutron decides.
func (in *SecurityGroupRuleRequest) rule() (r domain.SecurityGroupRule, err error) {
	r = domain.SecurityGroupRule{
		Direction: in.Direction, Ethertype: in.Ethertype, Protocol: in.Protocol, PortMin: in.PortMin,
		PortMax: in.PortMax, RemoteGroup: in.RemoteGroup, Description: in.Description,
	}
	if r.Direction == "" {
		r.Direction = "ingress"
	}
	if in.RemoteCIDR != "" {
		prefix, err := domain.ParseCIDR(in.RemoteCIDR)
		switch {
		case err != nil:
			return r, apperr.InvalidField("remote_cidr", "must be an address or a range, such as 10.0.0.0/8")
		case in.RemoteGroup != "":
			return r, apperr.InvalidField("remote_group", "cannot be combined with remote_cidr")
		case in.Ethertype != "" && in.Ethertype != domain.EthertypeOf(prefix):
			return r, apperr.InvalidField("ethertype", "must be that of remote_cidr", domain.EthertypeOf(prefix))
		}
		r.RemoteCIDR, r.Ethertype = prefix.String(), domain.EthertypeOf(prefix)
	}
	if r.Ethertype == "" {
		r.Ethertype = "IPv4"
	}
	isOfPorts := in.Protocol != "icmp" && in.Protocol != "icmpv6" && in.Protocol != "ipv6-icmp" && in.Protocol != "1" &&
		in.Protocol != "58"
	if isOfPorts && in.PortMin != nil && in.PortMax == nil {
		r.PortMax = in.PortMin
	}
	switch {
	case in.PortMin == nil && in.PortMax != nil:
		return r, apperr.InvalidField("port_min", "must be given with port_max")
	case isOfPorts && domain.Deref(r.PortMin) > domain.Deref(r.PortMax):
		return r, apperr.InvalidField("port_max", "must not be less than port_min")
	}
	return r, nil
}
