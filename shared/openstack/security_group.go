package openstack

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

type securityGroup struct {
	ID          string              `json:"id"`
	Name        string              `json:"name"`
	Description string              `json:"description"`
	Project     string              `json:"project_id"`
	Created     time.Time           `json:"created_at"`
	Updated     time.Time           `json:"updated_at"`
	Rules       []securityGroupRule `json:"security_group_rules"`
}

type securityGroupRule struct {
	ID          string  `json:"id"`
	Direction   string  `json:"direction"`
	Ethertype   string  `json:"ethertype"`
	Protocol    *string `json:"protocol"`
	PortMin     *int    `json:"port_range_min"`
	PortMax     *int    `json:"port_range_max"`
	RemoteCIDR  *string `json:"remote_ip_prefix"`
	RemoteGroup *string `json:"remote_group_id"`
	Description *string `json:"description"`
}

func (r securityGroupRule) domain() domain.SecurityGroupRule {
	return domain.SecurityGroupRule{
		ID: r.ID, Direction: r.Direction, Ethertype: r.Ethertype, Protocol: domain.Deref(r.Protocol),
		PortMin: r.PortMin, PortMax: r.PortMax, RemoteCIDR: domain.Deref(r.RemoteCIDR),
		RemoteGroup: domain.Deref(r.RemoteGroup), Description: domain.Deref(r.Description),
	}
}

func (g securityGroup) domain() domain.SecurityGroupRules {
	out := domain.SecurityGroupRules{
		SecurityGroup: domain.SecurityGroup{ID: g.ID, Name: g.Name, Description: g.Description},
		ProjectID:     g.Project, CreatedAt: g.Created.UTC(), UpdatedAt: g.Updated.UTC(),
		Rules: make([]domain.SecurityGroupRule, len(g.Rules)),
	}
	for n, r := range g.Rules {
		out.Rules[n] = r.domain()
	}
	slices.SortFunc(out.Rules, domain.SecurityGroupRule.Compare)
	return out
}

// SecurityGroupRules lists the project's security groups with their rules.
func (s *Session) SecurityGroupRules(ctx context.Context) ([]domain.SecurityGroupRules, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	type page struct {
		Groups []securityGroup `json:"security_groups"`
		Links  []link          `json:"security_groups_links"`
	}
	query := url.Values{"limit": {pageLimit}}
	if project := s.ownProject(); project != "" { // an admin sees those of all projects
		query.Set("project_id", project)
	}
	found, err := everyPage(ctx, neutron, neutron.ServiceURL("security-groups"), query,
		func(p *page) ([]securityGroup, string) { return p.Groups, linkTo(p.Links) },
		func(g securityGroup) string { return g.ID })
	return convert(found, err, securityGroup.domain)
}

// OwnSecurityGroup reads a security group of the project. One that another project shares with it, or that only an
// admin sees, is NotFound, with Neutron's words.
func (s *Session) OwnSecurityGroup(ctx context.Context, id string) (domain.SecurityGroupRules, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.SecurityGroupRules{}, err
	}
	var body struct {
		Group securityGroup `json:"security_group"`
	}
	err = get(ctx, neutron, neutron.ServiceURL("security-groups", url.PathEscape(id)), &body)
	own := s.ownProject()
	if err == nil && own != "" && body.Group.Project != "" && body.Group.Project != own {
		err = apperr.New(apperr.NotFound, "neutron: Security group %s does not exist", id)
	}
	if err != nil {
		return domain.SecurityGroupRules{}, err
	}
	return body.Group.domain(), nil
}

// CreateSecurityGroup makes a security group. Neutron gives it rules that let everything out.
func (s *Session) CreateSecurityGroup(
	ctx context.Context, name, description string,
) (domain.SecurityGroupRules, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.SecurityGroupRules{}, err
	}
	var body struct {
		Group securityGroup `json:"security_group"`
	}
	request := map[string]any{"security_group": map[string]any{"name": name, "description": description}}
	_, err = neutron.Post(ctx, neutron.ServiceURL("security-groups"), request, &body,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusCreated}})
	return body.Group.domain(), classify("neutron", err)
}

// DeleteSecurityGroup deletes a security group. It is a Conflict while a port has it.
func (s *Session) DeleteSecurityGroup(ctx context.Context, id string) error {
	return s.deleteOfNeutron(ctx, "security-groups", id)
}

// AddRule adds a rule to a security group. It is a Conflict if the group has such a rule.
func (s *Session) AddRule(
	ctx context.Context, groupID string, r domain.SecurityGroupRule,
) (domain.SecurityGroupRule, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.SecurityGroupRule{}, err
	}
	rule := map[string]any{"security_group_id": groupID, "direction": r.Direction, "ethertype": r.Ethertype}
	for field, value := range map[string]string{
		"protocol": r.Protocol, "remote_ip_prefix": r.RemoteCIDR, "remote_group_id": r.RemoteGroup,
		"description": r.Description,
	} {
		if value != "" {
			rule[field] = value
		}
	}
	for field, value := range map[string]*int{"port_range_min": r.PortMin, "port_range_max": r.PortMax} {
		if value != nil {
			rule[field] = *value
		}
	}
	var body struct {
		Rule securityGroupRule `json:"security_group_rule"`
	}
	_, err = neutron.Post(ctx, neutron.ServiceURL("security-group-rules"), map[string]any{"security_group_rule": rule},
		&body, &gophercloud.RequestOpts{OkCodes: []int{http.StatusCreated}})
	return body.Rule.domain(), classify("neutron", err)
}

// RemoveRule deletes a rule of a security group. It succeeds when it is deleted already.
func (s *Session) RemoveRule(ctx context.Context, id string) error {
	return absentIsDone(s.deleteOfNeutron(ctx, "security-group-rules", id))
}

func (s *Session) deleteOfNeutron(ctx context.Context, kind, id string) error {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return err
	}
	_, err = neutron.Delete(ctx, neutron.ServiceURL(kind, url.PathEscape(id)), nil)
	return classify("neutron", err)
}
