package securitygroups

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

type service struct{ cloud *openstack.Cloud }

// as makes the calls of a request, with its caller's token.
func (s service) as(who domain.Identity, token domain.Secret) *openstack.Session {
	return s.cloud.As(token, who.ProjectID)
}

// query selects security groups.
type query struct {
	name   string // a part of it
	limit  int
	marker string // the id of the last one of the page before
}

// List reads one page of security groups, by name. Neutron's quota keeps them few, so all are read. marker is the last
// one of the page, "" at the end of the list.
func (s service) List(
	ctx context.Context, who domain.Identity, token domain.Secret, q query,
) (page []domain.SecurityGroupRules, marker string, err error) {
	all, err := s.as(who, token).SecurityGroupRules(ctx)
	if err != nil {
		return nil, "", err
	}
	slices.SortFunc(all, func(a, b domain.SecurityGroupRules) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	if q.marker != "" {
		n := slices.IndexFunc(all, func(g domain.SecurityGroupRules) bool { return g.ID == q.marker })
		if n < 0 {
			return nil, "", apperr.InvalidField("marker",
				"is no security group of the project, or it was deleted meanwhile")
		}
		all = all[n+1:]
	}
	all = slices.DeleteFunc(all, func(g domain.SecurityGroupRules) bool {
		return !strings.Contains(strings.ToLower(g.Name), strings.ToLower(q.name))
	})
	if len(all) > q.limit {
		all = all[:q.limit]
		marker = all[q.limit-1].ID
	}
	return all, marker, nil
}

// Create makes a security group. Neutron cannot mark it in the call, so an attempt after one without an answer takes
// the group of the same name and description that was made since the first attempt.
func (s service) Create(
	ctx context.Context, who domain.Identity, token domain.Secret, name, description string,
) (domain.SecurityGroupRules, error) {
	cloud := s.as(who, token)
	id, _, isResumed := domain.AttemptFrom(ctx)
	if isResumed {
		all, err := cloud.SecurityGroupRules(ctx)
		if err != nil {
			return domain.SecurityGroupRules{}, err
		}
		all = slices.DeleteFunc(all, func(g domain.SecurityGroupRules) bool {
			return g.Name != name || g.Description != description ||
				g.CreatedAt.Before(begun(id).Add(-domain.ClockSkew))
		})
		if len(all) > 0 {
			return slices.MaxFunc(all, func(a, b domain.SecurityGroupRules) int {
				return a.CreatedAt.Compare(b.CreatedAt)
			}), nil
		}
	}
	return cloud.CreateSecurityGroup(ctx, name, description)
}

// begun is when the first attempt at a request has begun.
func begun(id uuid.UUID) time.Time { return time.Unix(id.Time().UnixTime()) }

// Delete deletes a security group of the project.
func (s service) Delete(ctx context.Context, who domain.Identity, token domain.Secret, id string) error {
	cloud := s.as(who, token)
	if _, err := cloud.OwnSecurityGroup(ctx, id); err != nil {
		return err
	}
	return cloud.DeleteSecurityGroup(ctx, id)
}

// AddRule adds a rule to a security group. Its RemoteGroup is an id or a name. isNew is false when the group has such a
// rule, which a request that is repeated after no answer finds.
func (s service) AddRule(
	ctx context.Context, who domain.Identity, token domain.Secret, id string, r domain.SecurityGroupRule,
) (made domain.SecurityGroupRule, isNew bool, err error) {
	cloud := s.as(who, token)
	group, err := cloud.OwnSecurityGroup(ctx, id)
	if err != nil {
		return made, false, err
	}
	if r.RemoteGroup != "" {
		groups, err := cloud.SecurityGroups(ctx)
		if err != nil {
			return made, false, err
		}
		remote, err := lookup.PickSecurityGroup(groups, lookup.Ref{Field: "remote_group", Value: r.RemoteGroup})
		if err != nil {
			return made, false, err
		}
		r.RemoteGroup = remote.ID
	}
	if n := slices.IndexFunc(group.Rules, r.IsSame); n >= 0 {
		return group.Rules[n], false, nil
	}
	made, err = cloud.AddRule(ctx, id, r)
	if apperr.CodeOf(err) != apperr.Conflict {
		return made, err == nil, err
	}
	group, failed := cloud.OwnSecurityGroup(ctx, id) // another request was faster
	if n := slices.IndexFunc(group.Rules, r.IsSame); failed == nil && n >= 0 {
		return group.Rules[n], false, nil
	}
	return made, false, err
}

// RemoveRule removes a rule of a security group.
func (s service) RemoveRule(
	ctx context.Context, who domain.Identity, token domain.Secret, id, ruleID string,
) error {
	cloud := s.as(who, token)
	group, err := cloud.OwnSecurityGroup(ctx, id)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(group.Rules, func(r domain.SecurityGroupRule) bool { return r.ID == ruleID }) {
		return apperr.New(apperr.NotFound, "the security group %s has no rule %s", id, ruleID)
	}
	return cloud.RemoveRule(ctx, ruleID)
}
