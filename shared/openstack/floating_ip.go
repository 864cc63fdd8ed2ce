package openstack

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

type floatingIP struct {
	ID          string    `json:"id"`
	Project     string    `json:"project_id"`
	Address     string    `json:"floating_ip_address"`
	Network     string    `json:"floating_network_id"`
	Description string    `json:"description"`
	Status      string    `json:"status"`
	Port        string    `json:"port_id"`          // null = free
	Fixed       string    `json:"fixed_ip_address"` // null = free
	Created     time.Time `json:"created_at"`
	Updated     time.Time `json:"updated_at"`
	Revision    int       `json:"revision_number"`
	Details     struct {
		Device string `json:"device_id"`
		Owner  string `json:"device_owner"`
	} `json:"port_details"` // null = free, or Neutron lacks the extension
}

func (f *floatingIP) domain() domain.FloatingIP {
	out := domain.FloatingIP{
		ID: f.ID, ProjectID: f.Project, Address: f.Address, NetworkID: f.Network, Description: f.Description,
		Status: f.Status, PortID: f.Port, FixedAddress: f.Fixed, CreatedAt: f.Created.UTC(),
		UpdatedAt: f.Updated.UTC(), Revision: f.Revision,
	}
	if f.Updated.IsZero() {
		out.UpdatedAt = out.CreatedAt
	}
	if strings.HasPrefix(f.Details.Owner, serverPort) {
		out.ServerID = f.Details.Device
	}
	return out
}

// serverPort begins the owner of a port that a server has.
const serverPort = "compute:"

type floatingIPPage struct {
	FloatingIPs []floatingIP `json:"floatingips"`
	Links       []link       `json:"floatingips_links"`
}

// ownProject is the project whose floating IPs the session has: that of its login, or of the caller's token.
func (s *Session) ownProject() string { return cmp.Or(s.project, s.scope) }

// floatingIPQuery is the query of a list. Neutron shows admins the floating IPs of all projects.
func (s *Session) floatingIPQuery(q domain.FloatingIPQuery) url.Values {
	query := url.Values{"limit": {pageLimit}, "sort_key": {"id"}, "sort_dir": {"asc"}}
	for name, value := range map[string]string{
		"project_id": s.ownProject(), "floating_ip_address": q.Address, "description": q.Description,
		"marker": q.Marker,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(q.PortIDs) > 0 {
		query["port_id"] = q.PortIDs
	}
	return query
}

// FloatingIPs lists the project's floating IPs that a query selects.
func (s *Session) FloatingIPs(ctx context.Context, q domain.FloatingIPQuery) ([]domain.FloatingIP, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	found, err := everyPage(ctx, neutron, neutron.ServiceURL("floatingips"), s.floatingIPQuery(q),
		func(p *floatingIPPage) ([]floatingIP, string) { return p.FloatingIPs, linkTo(p.Links) },
		func(f floatingIP) string { return f.ID })
	all, err := convert(found, err, func(f floatingIP) domain.FloatingIP { return f.domain() })
	return slices.DeleteFunc(all, func(f domain.FloatingIP) bool { return !q.Selects(f) }), err
}

// FloatingIPPage reads one page of the project's floating IPs, by their ids. hasMore reports whether others follow. It
// has some that the query does not select.
func (s *Session) FloatingIPPage(
	ctx context.Context, q domain.FloatingIPQuery,
) (page []domain.FloatingIP, hasMore bool, err error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, false, err
	}
	query := s.floatingIPQuery(q)
	query.Set("limit", strconv.Itoa(q.Limit+1)) // one more than the page shows whether others follow
	var body floatingIPPage
	if err := getPage(ctx, neutron, neutron.ServiceURL("floatingips")+"?"+query.Encode(), &body); err != nil {
		return nil, false, classify("neutron", err)
	}
	hasMore = len(body.FloatingIPs) > q.Limit || linkTo(body.Links) != "" // Neutron's own limit may be lower
	page = make([]domain.FloatingIP, min(q.Limit, len(body.FloatingIPs)))
	for n := range page {
		page[n] = body.FloatingIPs[n].domain()
	}
	return page, hasMore && len(page) > 0, nil
}

// FloatingIP reads a floating IP of the project. Those of other projects, which Neutron shows admins, are NotFound with
// Neutron's words.
func (s *Session) FloatingIP(ctx context.Context, id string) (domain.FloatingIP, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.FloatingIP{}, err
	}
	var body struct {
		Found floatingIP `json:"floatingip"`
	}
	err = get(ctx, neutron, neutron.ServiceURL("floatingips", url.PathEscape(id)), &body)
	if err == nil && body.Found.Project != s.ownProject() {
		return domain.FloatingIP{}, apperr.New(apperr.NotFound, "neutron: Floating IP %s could not be found", id)
	}
	return body.Found.domain(), err
}

// CreateFloatingIP makes a floating IP, and maps it to a port if the request says so: both or nothing. A fixed address
// has at most one floating IP of a network, so a repeated call that maps it is a Conflict.
func (s *Session) CreateFloatingIP(ctx context.Context, r domain.FloatingIPRequest) (domain.FloatingIP, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.FloatingIP{}, err
	}
	var made floatingIP
	err = floatingips.Create(ctx, neutron, floatingips.CreateOpts{
		FloatingNetworkID: r.NetworkID, FloatingIP: r.Address, Description: r.Description, PortID: r.PortID,
		FixedIP: r.FixedAddress,
	}).ExtractInto(&made)
	return made.domain(), classify("neutron", err)
}

// DetachFloatingIP frees a floating IP that is as it was read, and keeps it, also when its order's server is deleted.
func (s *Session) DetachFloatingIP(ctx context.Context, f domain.FloatingIP) error {
	_, err := s.updateFloatingIP(ctx, f, "", "")
	return err
}

// updateFloatingIP maps a floating IP to a port, or to none, unless it has changed since it was read: Neutron itself
// would take it away from the port that it is mapped to.
func (s *Session) updateFloatingIP(
	ctx context.Context, f domain.FloatingIP, portID, fixedAddress string,
) (domain.FloatingIP, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.FloatingIP{}, err
	}
	opts := floatingips.UpdateOpts{PortID: &portID, FixedIP: fixedAddress, RevisionNumber: &f.Revision}
	if domain.IsFloatingIPMark(f.Description) {
		opts.Description = new(string) // it is not released with the server that it was made for
	}
	var changed floatingIP
	err = floatingips.Update(ctx, neutron, url.PathEscape(f.ID), opts).ExtractInto(&changed)
	if gophercloud.ResponseCodeIs(err, http.StatusPreconditionFailed) {
		return changed.domain(), apperr.New(apperr.Conflict, "the floating IP %s was changed meanwhile", f.Address)
	}
	return changed.domain(), classify("neutron", err)
}

// DeleteFloatingIP releases a floating IP. It succeeds when there is no such floating IP.
func (s *Session) DeleteFloatingIP(ctx context.Context, id string) error {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return err
	}
	err = classify("neutron", floatingips.Delete(ctx, neutron, url.PathEscape(id)).Err)
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

// FloatingIPQuota is how many floating IPs the project may have, and has.
func (s *Session) FloatingIPQuota(ctx context.Context) (domain.QuotaItem, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.QuotaItem{}, err
	}
	var body struct {
		Quota struct {
			FloatingIP struct {
				Limit int `json:"limit"`
				Used  int `json:"used"`
			} `json:"floatingip"`
		} `json:"quota"`
	}
	err = get(ctx, neutron, neutron.ServiceURL("quotas", url.PathEscape(s.ownProject()), "details.json"), &body)
	return domain.QuotaItem{Max: body.Quota.FloatingIP.Limit, Used: body.Quota.FloatingIP.Used}, err
}

// ExternalNetworks lists the networks that the project can have floating IPs of, by name.
func (s *Session) ExternalNetworks(ctx context.Context) ([]domain.Network, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	found, err := networkPages(ctx, neutron, true)
	for n := range found {
		found[n].External = true
	}
	slices.SortFunc(found, func(a, b domain.Network) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return found, err
}
