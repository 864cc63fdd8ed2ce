package managed

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

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

// Schedule says where a resource may run.
type Schedule struct {
	Region   string            `json:"region,omitempty" maxLength:"255" doc:"Of the catalog."`
	Zone     string            `json:"zone,omitempty" maxLength:"255" doc:"An availability zone."`
	Labels   map[string]string `json:"labels,omitempty" doc:"That its node should have."`
	Affinity string            `json:"affinity,omitempty" enum:"spread,pack" doc:"Of a deployment's servers."`
}

func (s Schedule) rule() domain.ScheduleRule {
	return domain.ScheduleRule{Region: s.Region, Zone: s.Zone, Labels: s.Labels, Affinity: s.Affinity}
}

func showSchedule(r domain.ScheduleRule) Schedule {
	return Schedule{Region: r.Region, Zone: r.Zone, Labels: r.Labels, Affinity: r.Affinity}
}

// PutManaged is the body of PUT /v1/managed/{kind}/{name}: all that is declared. What is absent has its default, but
// for secrets, which stay.
type PutManaged struct {
	Flavor       string            `json:"flavor,omitempty" maxLength:"63" doc:"A template, whose spec it begins with."`
	Spec         Spec              `json:"spec,omitempty" doc:"Of the kind. It may be absent with a flavor."`
	Labels       map[string]string `json:"labels,omitempty"`
	Schedule     Schedule          `json:"schedule,omitzero"`
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

// status is a domain.ManagedStatus.
type status string

// Schema implements huma.SchemaProvider.
func (status) Schema(r huma.Registry) *huma.Schema {
	var values []any
	for _, s := range []domain.ManagedStatus{
		domain.ManagedPending, domain.ManagedCreating, domain.ManagedUpdating, domain.ManagedReady,
		domain.ManagedDegraded, domain.ManagedError, domain.ManagedDeleting,
	} {
		values = append(values, string(s))
	}
	return httpx.SharedSchema(r, "ManagedStatus", huma.Schema{Type: huma.TypeString, Enum: values})
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

// selector reads labels that are asked for, such as app=shop and tier!=db.
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
	case len(c.match) > 0 && !c.match.Has(version):
		return apperr.New(apperr.Precondition, "it has been changed: now %s", is)
	case version != 0 && c.noneMatch.Has(version):
		return apperr.New(apperr.Precondition, "it exists already: %s", is)
	}
	return nil
}
