package leases

import (
	"context"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// A host of the pool is in one aggregate at least: the pool's while it is idle, its reservation's while it has one, and
// both on the way between them, when no flavor and no image asks for both traits. No flavor shows the pool's trait, so
// no server gets onto an idle host: not by an image, and not by a flavor that is private to a project.

// PoolAggregate is its name in Nova. A user who may change this aggregate decides which hosts are in it.
const PoolAggregate = "cloudfn-reservable"

// required is the metadata key of an aggregate, and the extra spec of a flavor, that asks for a trait.
func required(trait string) string { return "trait:" + trait }

// requires is the metadata of an aggregate that keeps servers without the trait off its hosts.
func requires(trait string) map[string]string { return map[string]string{required(trait): "required"} }

// isolate puts a host into an aggregate that requires the trait, which the host gets before.
func isolate(ctx context.Context, cloud HostCloud, name, trait string, node domain.Node) error {
	aggregate, err := isolation(ctx, cloud, name, trait)
	if err != nil {
		return err
	}
	return enter(ctx, cloud, aggregate, trait, node)
}

// isolation makes an aggregate that requires the trait.
func isolation(ctx context.Context, cloud HostCloud, name, trait string) (aggregate domain.Aggregate, err error) {
	if err := cloud.EnsureTrait(ctx, trait); err != nil {
		return aggregate, err
	}
	return cloud.EnsureAggregate(ctx, name, requires(trait))
}

// enter puts a host into an aggregate, and gives it the trait before.
func enter(ctx context.Context, cloud HostCloud, aggregate domain.Aggregate, trait string, node domain.Node) error {
	if err := cloud.SetProviderTrait(ctx, node.ProviderID, trait, true); err != nil {
		return err
	}
	return cloud.AddHost(ctx, aggregate, node.Name, node.ProviderID)
}

// foreignAggregate is what the owner of a lease reads of such an aggregate.
const foreignAggregate = "an aggregate of the cloud keeps servers off a reserved host: the cloud's admin has to take " +
	"the host out of it"

// CheckAggregates returns a Conflict when the host is in an isolating aggregate that is not cloudfn's, such as one of
// hosts with GPUs: a server must have the required traits of each aggregate of its host, and the flavors of a
// reservation require no traits but its own. So it does when aggregates keep the host for other projects than this
// one; "" stands for all.
func CheckAggregates(all []domain.Aggregate, host, projectID string) error {
	if err := tenancy(all, host, projectID); err != nil {
		return err
	}
	for _, a := range all {
		isOurs := a.Name == PoolAggregate || strings.HasPrefix(a.Name, leaseAggregate)
		if isOurs || !slices.Contains(a.Hosts, host) {
			continue
		}
		for key, value := range a.Metadata {
			if strings.HasPrefix(key, required("")) && value == "required" {
				return public(apperr.New(apperr.Conflict, "host %s is in the aggregate %q, whose property %s=required "+
					"keeps servers of reservations off it: take the host out of that aggregate first", host, a.Name,
					key), foreignAggregate)
			}
		}
	}
	return nil
}

// CheckIsolation is CheckAggregates with the aggregates that the cloud has, for all projects: each may get the host.
func CheckIsolation(
	ctx context.Context, cloud interface {
		Aggregates(ctx context.Context) ([]domain.Aggregate, error)
	}, host string,
) error {
	aggregates, err := cloud.Aggregates(ctx)
	if err != nil {
		return err
	}
	return CheckAggregates(aggregates, host, "")
}

// tenantKey begins the properties of aggregates that keep hosts for projects: Nova's AggregateMultiTenancyIsolation
// reads the key itself, with ids between commas, and Placement's tenant aggregates any key that begins so.
const tenantKey = "filter_tenant_id"

// tenancy is a Conflict when aggregates keep a host for other projects; "" stands for all. The projects of several
// aggregates count together, as in Nova.
func tenancy(all []domain.Aggregate, host, projectID string) error {
	var conflict error
	for _, a := range all {
		if !slices.Contains(a.Hosts, host) {
			continue
		}
		for key, value := range a.Metadata {
			if !strings.HasPrefix(key, tenantKey) {
				continue
			}
			for id := range strings.SplitSeq(value, ",") {
				switch strings.TrimSpace(id) {
				case "":
				case projectID:
					return nil
				default:
					conflict = public(apperr.New(apperr.Conflict, "host %s is in the aggregate %q, whose property %s "+
						"keeps servers of other projects off it: take the host out of that aggregate first",
						host, a.Name, key), foreignAggregate)
				}
			}
		}
	}
	return conflict
}
