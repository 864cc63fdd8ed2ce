package managed

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// nameForm is the form of names of resources and flavors: a DNS label.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

const nameRule = "must be 1 to 63 lower-case letters, digits and hyphens, and neither begin nor end with a hyphen"

const (
	maxName = 63
	// maxDeployment leaves room for the number of a server: Nova cuts off what a host name has beyond 63 characters.
	maxDeployment = maxName - len("-99")
)

// PutManaged is the body of PUT /v1/managed/{kind}/{name}: all that is declared. What is absent has its default, but
// for secrets, which stay.
type PutManaged struct {
	Flavor       string            `json:"flavor,omitempty" maxLength:"63" doc:"A template, whose spec it begins with."`
	Spec         Spec              `json:"spec,omitempty" doc:"Of the kind. It may be absent with a flavor."`
	Labels       map[string]string `json:"labels,omitempty"`
	Schedule     domain.Schedule   `json:"schedule,omitzero"`
	Repair       domain.Repair     `json:"repair,omitempty" enum:"auto,manual"`
	MaxRevisions *int              `json:"max_revisions,omitempty" minimum:"1" maximum:"100" doc:"10 by default."`
}

// Resolve implements huma.Resolver.
func (p *PutManaged) Resolve(huma.Context) (faults []error) {
	if p.Spec == nil && p.Flavor == "" {
		faults = append(faults, apperr.InvalidField("spec", "is missing: give it, or a flavor"))
	}
	if err := domain.CheckStorable("schedule.zone", p.Schedule.Zone); err != nil {
		faults = append(faults, err)
	}
	return slices.Concat(faults, checkLabels("labels", p.Labels), checkLabels("schedule.labels", p.Schedule.Labels))
}

func (p *PutManaged) repair() domain.Repair { return cmp.Or(p.Repair, domain.RepairManual) }

func (p *PutManaged) maxRevisions() int {
	if p.MaxRevisions == nil {
		return domain.DefaultMaxRevisions
	}
	return *p.MaxRevisions
}

const maxLabels = 64

// checkLabels finds labels that Kubernetes would not take.
func checkLabels(field string, labels map[string]string) (faults []error) {
	if len(labels) > maxLabels {
		faults = append(faults, apperr.InvalidField(field, fmt.Sprintf("must have %d entries or fewer", maxLabels)))
	}
	for key, value := range labels {
		if fault := domain.CheckLabel(key, value); fault != "" {
			faults = append(faults, apperr.InvalidField(field+"."+key, fault))
		}
	}
	return faults
}

// selector reads requested labels, such as app=shop and tier!=db.
func selector(given []string) (with map[string]string, without []map[string]string, err error) {
	with = map[string]string{}
	for _, text := range given {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, nil, apperr.Malformed("label", "a key and a value, such as app=shop or tier!=db", text)
		}
		key, isNot := strings.CutSuffix(key, "!")
		one := map[string]string{key: value}
		if faults := checkLabels("label", one); len(faults) > 0 {
			return nil, nil, faults[0]
		}
		if isNot {
			without = append(without, one)
		} else {
			with[key] = value
		}
	}
	return with, without, nil
}

// condition is what a request expects of the version of what it changes (RFC 9110, If-Match and If-None-Match).
type condition struct{ match, noneMatch httpx.Versions }

func conditionOf(r *http.Request) condition {
	return condition{match: httpx.VersionsOf(r, "If-Match"), noneMatch: httpx.VersionsOf(r, "If-None-Match")}
}

// check compares with the version that is stored; 0 = nothing is stored. A refusal has the present revision; 0 = none.
func (c condition) check(version int64, revision int) error {
	is := "its ETag is " + httpx.ETag(version)
	if revision > 0 {
		is = fmt.Sprintf("its revision is %d, and %s", revision, is)
	}
	switch {
	case len(c.match) > 0 && version == 0:
		return apperr.New(apperr.Precondition, "it does not exist, and If-Match expects a version of it")
	case len(c.match) > 0 && !c.match.Has(httpx.ETag(version)):
		return apperr.New(apperr.Precondition, "it has been changed: now %s", is)
	case version != 0 && c.noneMatch.Has(httpx.ETag(version)):
		return apperr.New(apperr.Precondition, "it exists already: %s", is)
	}
	return nil
}

// ManagedPage is a page of resources.
type ManagedPage struct { //nolint:revive // its name in the API
	Items []Managed `json:"managed" maxItems:"1000"`
	Next  *string   `json:"next" pattern:"^/v1/managed" doc:"The URL of the next page, without a host, or null."`
}

// Managed is a declared resource.
type Managed struct {
	ID               uuid.UUID             `json:"id" doc:"Version 7, in the order of time."`
	Kind             domain.Kind           `json:"kind" minLength:"1"`
	Name             string                `json:"name" minLength:"1" maxLength:"63"`
	Provider         string                `json:"provider" minLength:"1"`
	Flavor           string                `json:"flavor,omitempty" minLength:"1" doc:"The template it began with."`
	Labels           map[string]string     `json:"labels"`
	Schedule         domain.Schedule       `json:"schedule"`
	Repair           domain.Repair         `json:"repair" enum:"auto,manual"`
	MaxRevisions     int                   `json:"max_revisions" minimum:"1"`
	Revision         int                   `json:"revision" minimum:"1" doc:"What is declared."`
	ObservedRevision int                   `json:"observed_revision" minimum:"0" doc:"What is real; 0 = nothing yet."`
	Request          domain.ManagedRequest `json:"request_method" enum:",create,update,delete" doc:"What is pending."`
	Status           domain.ManagedStatus  `json:"status"`
	StatusReason     string                `json:"status_reason"`
	Conditions       []domain.Condition    `json:"conditions"`
	Drift            []domain.Drift        `json:"drift"`
	Members          []Member              `json:"members"`
	Endpoints        []domain.Endpoint     `json:"endpoints,omitempty" minItems:"1" doc:"Of a pod's containers."`
	Spec             Spec                  `json:"spec"`
	SecretFields     []string              `json:"secret_fields,omitempty" minItems:"1" doc:"Of the spec, not shown."`
	UserID           string                `json:"user_id" minLength:"1" doc:"In whose name it is made."`
	CreatedAt        time.Time             `json:"created_at"`
	UpdatedAt        time.Time             `json:"updated_at"`
	Plan             []ManagedPlan         `json:"plan,omitempty" minItems:"1" doc:"Of a dry run."`
}

// Member is an object of OpenStack that makes a resource.
type Member struct {
	ID       uuid.UUID           `json:"id" doc:"Its mark; of a server the instance's id."`
	Name     string              `json:"name" minLength:"1" doc:"That of its object."`
	Ordinal  int                 `json:"ordinal" minimum:"0" doc:"Of a deployment's server: the number in its name."`
	ObjectID string              `json:"object_id,omitempty" minLength:"1" doc:"In OpenStack."`
	Revision int                 `json:"revision" minimum:"1"`
	Status   domain.MemberStatus `json:"status" enum:"creating,ready,updating,error,deleting"`
	Reason   string              `json:"reason,omitempty" minLength:"1"`
	Node     string              `json:"node,omitempty" minLength:"1" doc:"The host that it runs on."`
}

// ManagedPlan is what a declaration would do.
type ManagedPlan struct { //nolint:revive // its name in the API
	Action string      `json:"action" enum:"create,update,replace,none"`
	Fields []PlanField `json:"fields"`
	Note   string      `json:"note,omitempty" minLength:"1" doc:"What of it waits for you."`

	Missing []PlanMissing `json:"missing,omitempty" minItems:"1" doc:"New references to nothing, or to several."`
}

// PlanMissing is a name in a declaration that stands for nothing, so the resource would wait for it.
type PlanMissing struct {
	Field  string `json:"field" minLength:"1"`
	Kind   string `json:"kind,omitempty" minLength:"1" doc:"Declare a resource of this kind, or correct the name."`
	Name   string `json:"name" minLength:"1"`
	Detail string `json:"detail" minLength:"1"`
}

// PlanField is a field that a declaration changes. A secret's values are not shown.
type PlanField struct {
	Field string `json:"field" minLength:"1"`
	From  any    `json:"from,omitempty"`
	To    any    `json:"to,omitempty"`
}

// ManagedRevision is what was declared once.
type ManagedRevision struct { //nolint:revive // its name in the API
	Revision     int               `json:"revision" minimum:"1"`
	Flavor       string            `json:"flavor,omitempty" minLength:"1"`
	Spec         Spec              `json:"spec"`
	SecretFields []string          `json:"secret_fields,omitempty" minItems:"1"`
	Labels       map[string]string `json:"labels"`
	Schedule     domain.Schedule   `json:"schedule"`
	RolledBack   int               `json:"rolled_back,omitempty" minimum:"1" doc:"The revision that it repeats."`
	UserID       string            `json:"user_id" minLength:"1" doc:"Who declared it."`
	UserName     string            `json:"user_name,omitempty" minLength:"1"`
	CreatedAt    time.Time         `json:"created_at"`
}

// ManagedRevisions are the revisions of a resource.
type ManagedRevisions struct { //nolint:revive // its name in the API
	Items []ManagedRevision `json:"revisions" doc:"The newest first."`
}

// Provider serves kinds of resources.
type Provider struct {
	Name        string        `json:"name" minLength:"1"`
	Description string        `json:"description"`
	Kinds       []domain.Kind `json:"kinds" minItems:"1"`
	Driver      string        `json:"driver,omitempty" minLength:"1" doc:"What is behind it."`
	Available   bool          `json:"available" doc:"Whether its kinds can be declared."`
	Reason      string        `json:"reason,omitempty" minLength:"1" doc:"Why not."`
}

// ProviderList are the providers.
type ProviderList struct {
	Items []Provider `json:"providers"`
}

func show(m domain.Managed) Managed {
	out := Managed{
		ID: m.ID, Kind: m.Kind, Name: m.Name, Provider: m.Provider, Flavor: m.Flavor, Labels: orNone(m.Labels),
		Schedule: m.Schedule, Repair: m.Repair, MaxRevisions: m.MaxRevisions, Revision: m.Revision,
		ObservedRevision: m.ObservedRevision, Request: m.Request, Status: m.Status, StatusReason: m.Reason,
		Conditions: []domain.Condition{}, Drift: append([]domain.Drift{}, m.Drift...), Members: []Member{},
		Spec:         Spec(m.Spec),
		SecretFields: secretFields(m.Kind, m.Digest), UserID: m.UserID, CreatedAt: m.CreatedAt.UTC(),
		UpdatedAt: m.UpdatedAt.UTC(),
	}
	for _, c := range m.Conditions {
		c.LastTransitionAt = c.LastTransitionAt.UTC()
		out.Conditions = append(out.Conditions, c)
	}
	for _, x := range m.Members {
		out.Members = append(out.Members, Member{
			ID: x.ID, Name: m.NameOf(x), Ordinal: x.Ordinal, ObjectID: x.ObjectID, Revision: x.Revision,
			Status: x.Status, Reason: x.Reason, Node: x.Node,
		})
	}
	return out
}

// showPlan is a resource as a dry run answers it: what it would be, and what would be done.
func showPlan(m domain.Managed, p plan) Managed {
	if m.Revision == 0 {
		m.Revision, m.Request, m.Status = 1, domain.ManagedCreate, domain.ManagedPending
	}
	out := show(m)
	if p.fields == nil {
		p.fields = []PlanField{}
	}
	out.Plan = []ManagedPlan{{Action: p.action, Fields: p.fields, Note: p.note, Missing: p.absent}}
	return out
}

func showRevision(kind domain.Kind, r domain.Revision) ManagedRevision {
	return ManagedRevision{
		Revision: r.Number, Flavor: r.Flavor, Spec: Spec(r.Spec), SecretFields: secretFields(kind, r.Digest),
		Labels: orNone(r.Labels), Schedule: r.Schedule, RolledBack: r.RolledBack, UserID: r.UserID,
		UserName: r.UserName, CreatedAt: r.CreatedAt.UTC(),
	}
}

// secretFields are the fields of a spec that are stored and not shown.
func secretFields(kind domain.Kind, digest []byte) []string {
	if len(digest) == 0 {
		return nil
	}
	return []string{secretField(kind)}
}

func orNone(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}
