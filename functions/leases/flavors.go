package leases

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

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
			"is missing, and no public flavor fits the hosts: give flavors, or ask for larger hosts")
	}
	return chosen, err
}

// checkFlavor rejects a flavor that does not fit each of the hosts, or asks Placement for more than its sizes.
func (p *hostPool) checkFlavor(ctx context.Context, f domain.Flavor, hosts []domain.Node, field string) error {
	for _, h := range hosts {
		if f.VCPUs > h.VCPUs || f.RAMMB > h.RAMMB || f.DiskGB > h.DiskGB {
			return apperr.InvalidField(field, fmt.Sprintf("the flavor %q has %d vCPUs, %d MiB and %d GiB, and the "+
				"smallest host that matches has %d vCPUs, %d MiB and %d GiB: ask for larger hosts", f.Name, f.VCPUs,
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
