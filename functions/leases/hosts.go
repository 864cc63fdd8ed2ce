package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// hostPool are the hosts that can be reserved. Postgres decides which of them a lease gets; the pool is for saying what
// is wrong with a request, and what would be right.
type hostPool struct {
	all     []domain.Node      // not nil, once it is read
	joining string             // how many more hosts are joining, and what to do about it; "" = none
	region  string             // this cloud's
	cloud   *openstack.Session // nil = flavors are not needed

	flavors []domain.Flavor // as the caller sees them, once they are read
}

func (s service) hostPool(ctx context.Context, cloud *openstack.Session) (hostPool, error) {
	found, err := s.nodes.Pool(ctx)
	pool := hostPool{joining: joining(found), region: s.cloud.Region(), cloud: cloud}
	pool.all = slices.DeleteFunc(found, func(n domain.Node) bool { return n.Pool != domain.NodeReservable })
	switch {
	case err != nil || len(pool.all) > 0:
		return pool, err
	case pool.joining != "":
		return pool, apperr.New(apperr.Unprocessable, "no host of this cloud is reservable yet: %s", pool.joining)
	}
	return pool, apperr.New(apperr.Unprocessable, "no host of this cloud is reservable: its admins choose the hosts "+
		"that are (cloudfn nodes reservable NAME, or POST /v1/nodes/{name}/reservable)")
}

// joining says how many hosts will be reservable soon, else how many cannot be isolated: only admins may read why.
func joining(nodes []domain.Node) string {
	soon, blocked := 0, 0
	for _, n := range nodes {
		if n.Pool == domain.NodeJoining && n.Reason == "" {
			soon++
		} else if n.Pool == domain.NodeJoining {
			blocked++
		}
	}
	switch {
	case soon == 1:
		return "1 host is joining, which takes about a minute: repeat the request then"
	case soon > 1:
		return fmt.Sprintf("%d hosts are joining, which takes about a minute: repeat the request then", soon)
	case blocked > 0:
		return fmt.Sprintf("%d of the chosen hosts cannot join yet, and admins see why (cloudfn nodes list)", blocked)
	}
	return ""
}

// lacks is the error of a field that no host of the pool satisfies.
func (p *hostPool) lacks(field, detail string, allowed []string) *apperr.Error {
	if p.joining != "" {
		detail += "; " + p.joining
	}
	return apperr.InvalidField(field, detail, lookup.Some(allowed)...)
}

// withJoining adds the hosts that are joining to the error of a lease for which too few hosts are reservable.
func (s service) withJoining(ctx context.Context, err error) error {
	var free *domain.FreeError
	if apperr.CodeOf(err) != apperr.Unprocessable || !errors.As(err, &free) {
		return err
	}
	found, failed := s.nodes.Pool(ctx)
	more := joining(found)
	if failed != nil || more == "" {
		return err
	}
	refusal := *free.Refusal
	refusal.Message += "; " + more
	refusal.Fields = slices.Clone(refusal.Fields)
	for n := range refusal.Fields {
		refusal.Fields[n].Detail += "; " + more
	}
	return &refusal // without a FreeError: waiting for a time at which the hosts are free is of no use
}

// reservation is the nth one of a request.
func (p *hostPool) reservation(ctx context.Context, n int, r ReservationRequest) (domain.Reservation, error) {
	out := domain.Reservation{ID: uuid.New(), Type: r.Type, Status: domain.ReservationPending}
	if r.Type == domain.InstanceReservation {
		out.InstanceID = r.InstanceID.OrNil() // of server_id: when its server is connected
		return out, nil
	}
	field := func(name string) string { return fmt.Sprintf("reservations[%d].%s", n, name) }
	out.Request = r.want()
	if err := p.check(out.Request, field); err != nil {
		return out, err
	}
	flavors, err := p.leasedFlavors(ctx, r.Flavors, p.matching(*out.Request), field)
	for _, f := range flavors {
		out.Flavors = append(out.Flavors, copyOf(f, out.ID))
	}
	return out, err
}

// check rejects what no host of the pool has. It drops the name of this cloud's region, which hosts may lack.
func (p *hostPool) check(want *domain.HostRequest, field func(string) string) error {
	if want.Region == p.region {
		want.Region = ""
	}
	regions := p.values(func(n domain.Node) []string { return []string{n.Region, p.region} })
	zones := p.values(func(n domain.Node) []string { return []string{n.Zone} })
	switch {
	case want.Region != "" && !slices.Contains(regions, want.Region):
		return p.lacks(field("region"),
			fmt.Sprintf("no reservable host is in the region %.64q", want.Region), regions)
	case want.Zone != "" && !slices.Contains(zones, want.Zone):
		return p.lacks(field("zone"),
			fmt.Sprintf("no reservable host is in the availability zone %.64q", want.Zone), zones)
	}
	for k, trait := range want.Traits {
		if err := p.checkTrait(trait, fmt.Sprintf("%s[%d]", field("traits"), k)); err != nil {
			return err
		}
	}
	return p.checkCapabilities(want.Capabilities, field("capabilities"))
}

// checkCapabilities rejects expressions about attributes and traits that no host has. They parse.
func (p *hostPool) checkCapabilities(wanted []string, field string) error {
	attributes := p.values(func(n domain.Node) []string { return slices.Collect(maps.Keys(n.Capabilities())) })
	for n, text := range wanted {
		field := fmt.Sprintf("%s[%d]", field, n)
		c, err := domain.ParseCapability(field, text)
		if err != nil {
			return err
		}
		if trait, ok := c.Trait(); ok {
			err = p.checkTrait(trait, field)
		} else if !slices.Contains(attributes, c.Attribute) {
			err = p.lacks(field, fmt.Sprintf("no reservable host has the attribute %.64q", c.Attribute), attributes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkTrait rejects a trait that no host has.
func (p *hostPool) checkTrait(trait, field string) error {
	traits := p.values(func(n domain.Node) []string { return n.Traits })
	if slices.Contains(traits, trait) {
		return nil
	}
	return p.lacks(field, fmt.Sprintf("no reservable host has the trait %.64q", trait), traits)
}

// values lists what the hosts of the pool have.
func (p *hostPool) values(of func(domain.Node) []string) (values []string) {
	for _, node := range p.all {
		for _, value := range of(node) {
			if value != "" {
				values = append(values, value)
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// matching are the hosts that have what is wanted, whether they are free or not.
func (p *hostPool) matching(want domain.HostRequest) (found []domain.Node) {
	for _, node := range p.all {
		if want.Matches(node) {
			found = append(found, node)
		}
	}
	return found
}

// Availability lists when hosts are free.
func (s service) Availability(
	ctx context.Context, who domain.Identity, q domain.FreeQuery,
) (slots []domain.FreeSlot, err error) {
	now, err := s.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	if q.From.Before(now) {
		q.From = now
	}
	if q.From, q.Until, err = s.window(ctx, q.From, q.Until); err != nil {
		return nil, err
	}
	q.Cleaning = s.rules.Cleaning
	if q.Length.AddTo(q.From).After(q.Until) {
		return nil, apperr.InvalidField("duration", "is longer than the time from `from` until `until`, which is "+
			domain.RoughPeriod(q.Until.Sub(q.From), false).String())
	}
	pool, err := s.hostPool(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := pool.check(&q.Request, func(name string) string { return name }); err != nil {
		return nil, err
	}
	if n := len(pool.matching(q.Request)); n < q.Hosts {
		refusal := pool.lacks("hosts",
			fmt.Sprintf("is %d, but the number of reservable hosts that match is %d", q.Hosts, n), nil)
		refusal.Code = apperr.Unprocessable
		return nil, refusal
	}
	if err := s.count(ctx, who); err != nil {
		return nil, err
	}
	return s.store.Availability(ctx, q)
}

// Allocations returns the hosts that reservations have, for callers to whom Nova shows its compute services.
func (s service) Allocations(
	ctx context.Context, who domain.Identity, token domain.Secret, q domain.AllocationQuery,
) (found []domain.Allocation, err error) {
	if _, err := s.cloud.As(token, who.ProjectID).ComputeHosts(ctx); err != nil {
		return nil, nodes.ForAdmins(err, "the hosts of all projects' leases are for the cloud's admins")
	}
	if q.From, q.Until, err = s.window(ctx, q.From, q.Until); err != nil {
		return nil, err
	}
	return s.store.Allocations(ctx, q)
}

// maxFlavors bounds the flavors of a reservation.
const maxFlavors = 20

// leasedFlavors are the flavors with which servers can be launched on the hosts: those that are given by id or name, or
// the public ones that fit each host. Without hosts every flavor fits: then Postgres refuses the reservation.
func (p *hostPool) leasedFlavors(
	ctx context.Context, given []string, hosts []domain.Node, field func(string) string,
) (chosen []domain.Flavor, err error) {
	if p.flavors == nil {
		if p.flavors, err = p.cloud.Flavors(ctx); err != nil {
			return nil, err
		}
	}
	for n, value := range given {
		name := fmt.Sprintf("%s[%d]", field("flavors"), n)
		f, err := lookup.PickFlavor(p.flavors, lookup.Ref{Field: name, Value: value})
		if err == nil {
			err = p.checkFlavor(ctx, f, hosts, name)
		}
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, f)
	}
	if given != nil {
		return chosen, nil
	}
	public := slices.DeleteFunc(slices.Clone(p.flavors), func(f domain.Flavor) bool { return !f.Public })
	slices.SortFunc(public, func(a, b domain.Flavor) int {
		return cmp.Or(a.VCPUs-b.VCPUs, a.RAMMB-b.RAMMB, a.DiskGB-b.DiskGB, strings.Compare(a.Name, b.Name))
	})
	for _, f := range public {
		err := p.checkFlavor(ctx, f, hosts, "flavors")
		if code := apperr.CodeOf(err); code != "" && code != apperr.Invalid {
			return nil, err
		}
		if err == nil {
			chosen = append(chosen, f)
		}
		if len(chosen) == maxFlavors {
			break
		}
	}
	if len(chosen) == 0 {
		err = apperr.InvalidField(field("flavors"),
			"is missing, and no public flavor fits the hosts: give flavors, or request larger hosts")
	}
	return chosen, err
}

// checkFlavor rejects a flavor that does not fit each of the hosts, or requests more from Placement than its sizes.
func (p *hostPool) checkFlavor(ctx context.Context, f domain.Flavor, hosts []domain.Node, field string) error {
	for _, h := range hosts {
		if f.VCPUs > h.VCPUs || f.RAMMB > h.RAMMB || f.DiskGB > h.DiskGB {
			return apperr.InvalidField(field, fmt.Sprintf("the flavor %q has %d vCPUs, %d MiB and %d GiB, and the "+
				"smallest host that matches has %d vCPUs, %d MiB and %d GiB: request larger hosts", f.Name, f.VCPUs,
				f.RAMMB, f.DiskGB, h.VCPUs, h.RAMMB, h.DiskGB))
		}
	}
	specs, err := p.cloud.FlavorSpecs(ctx, f.ID)
	if err != nil {
		return err
	}
	for key := range specs {
		if strings.HasPrefix(key, "resources") || strings.HasPrefix(key, "trait") {
			return apperr.InvalidField(field, fmt.Sprintf("the flavor %q has the extra spec %q, which may contradict "+
				"the reservation: choose one without extra specs resources: and trait:", f.Name, key))
		}
	}
	return nil
}

// copyOf is the private flavor of a reservation. Its id and name are the same at each attempt to make it.
func copyOf(f domain.Flavor, reservation uuid.UUID) domain.LeasedFlavor {
	name := []rune(f.Name)
	return domain.LeasedFlavor{
		ID:     uuid.NewSHA1(reservation, []byte(f.ID)).String(),
		Name:   string(name[:min(len(name), maxName-9)]) + "-" + reservation.String()[:8],
		BaseID: f.ID, Base: f.Name, VCPUs: f.VCPUs, RAMMB: f.RAMMB, DiskGB: f.DiskGB,
	}
}

// maxName is what Nova allows for the name of a flavor, in characters.
const maxName = 255
