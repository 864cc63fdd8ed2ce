package managed

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

type providersInput struct {
	Region string `query:"region" maxLength:"255" example:"RegionOne" doc:"Of the catalog; the function's by default."`
}

func (h handler) providers(ctx context.Context, in *providersInput) (*httpx.Value[ProviderList], error) {
	who, token := auth.Caller(ctx)
	found, err := h.svc.Providers(ctx, who, token, in.Region)
	if err != nil {
		return nil, err
	}
	list := ProviderList{Items: make([]Provider, len(found))}
	for n, p := range found {
		list.Items[n] = Provider{
			Name: p.Name, Description: p.Description, Kinds: p.Kinds, Driver: p.Driver, Available: p.Reason == "",
			Reason: p.Reason,
		}
	}
	return &httpx.Value[ProviderList]{Body: list}, nil
}

// ListInput is what every list of resources takes.
type ListInput struct {
	Label  []string               `query:"label" minItems:"1" maxItems:"20" example:"[\"app=shop\"]"`
	Name   string                 `query:"name" maxLength:"63" example:"web" doc:"A part of the name."`
	Status []domain.ManagedStatus `query:"status" minItems:"1" example:"[\"ready\",\"error\"]"`
	httpx.Page
	Marker httpx.ID `query:"marker" example:"019b7c5e-8a70-7b99-825a-7e1f6b5d4f66" doc:"The last id before."`
}

// Resolve implements huma.Resolver. Where ListInput is embedded, huma calls only this one, and not that of Marker.
func (in *ListInput) Resolve(ctx huma.Context) []error {
	faults := in.Page.Resolve(ctx)
	if ctx.Query("marker") != "" {
		faults = append(faults, httpx.NotZero(in.Marker.UUID, "query.marker")...)
	}
	return faults
}

type listInput struct {
	Kind string `query:"kind" maxLength:"63" example:"VirtualMachine" doc:"Only resources of this kind."`
	ListInput
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[ManagedPage], error) {
	kind, err := kindFilter(in.Kind)
	if err != nil {
		return nil, err
	}
	return h.page(ctx, kind, &in.ListInput)
}

type listKindInput struct {
	KindPath
	ListInput
}

func (h handler) listKind(ctx context.Context, in *listKindInput) (*httpx.Value[ManagedPage], error) {
	kind, err := in.kind()
	if err != nil {
		return nil, err
	}
	return h.page(ctx, kind, &in.ListInput)
}

func (h handler) page(ctx context.Context, kind domain.Kind, in *ListInput) (*httpx.Value[ManagedPage], error) {
	labels, without, err := selector(in.Label)
	if err != nil {
		return nil, err
	}
	found, hasMore, err := h.svc.List(ctx, auth.CallerOrNobody(ctx), domain.ManagedQuery{
		Kind: kind, Labels: labels, Without: without, Name: in.Name, Statuses: in.Status, Limit: in.Limit,
		Marker: in.Marker.UUID,
	})
	if err != nil {
		return nil, err
	}
	page := ManagedPage{Items: make([]Managed, len(found))}
	for n, m := range found {
		page.Items[n] = show(m)
	}
	if hasMore {
		page.Next = in.Next(found[len(found)-1].ID.String())
	}
	return &httpx.Value[ManagedPage]{Body: page}, nil
}
