package launch

import (
	"maps"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// leaseHints are the scheduler hints that stand for the block lease. Any other name is Nova's.
var leaseHints = []string{domain.LeaseStartKey, domain.LeaseEndKey, domain.LeaseNameKey}

// withLeaseHints returns the request with its lease as a block, if it has it as scheduler hints, and reports what is
// wrong with them. Nova gets no such hint: the order and its hash are those of the block.
func (in launchRequest) withLeaseHints() (launchRequest, []error) {
	var wrong faults
	given := map[string]string{}
	others := maps.Clone(in.Hints)
	for _, hint := range leaseHints {
		field := "scheduler_hints." + hint
		for n, o := range in.Instances {
			_, isGiven := o.Hints[hint]
			wrong.forbid(isGiven, inInstance(n)(field), "is for all servers of the order: give it in scheduler_hints")
		}
		value, isGiven := in.Hints[hint]
		if !isGiven {
			continue
		}
		delete(others, hint)
		text, _ := value.(string)
		if given[hint] = text; text == "" {
			wrong.add(apperr.InvalidField(field, "must be a text that is not empty"))
		}
	}
	if len(given) == 0 {
		return in, wrong
	}
	wrong.forbid(in.Lease != nil, "scheduler_hints", "cannot have hints of a lease beside the block lease: give one")
	lease := &OrderLeaseRequest{Name: given[domain.LeaseNameKey], fromHints: true}
	lease.Start = httpx.TimeOrNow(given[domain.LeaseStartKey])
	lease.End = new(httpx.Time)
	end := given[domain.LeaseEndKey]
	if err := lease.End.UnmarshalText([]byte(end)); err != nil && end != "" {
		wrong.add(apperr.InvalidField(lease.at("end"), apperr.As(err).Message))
	}
	if _, ok := given[domain.LeaseEndKey]; !ok {
		wrong.add(apperr.InvalidField(lease.at("end"), "is missing: a lease has an end"))
	}
	if lease.Name != "" {
		wrong.add(domain.CheckText(lease.at("name"), lease.Name, domain.MaxNameLength))
	}
	if in.Hints = others; len(others) == 0 {
		in.Hints = nil
	}
	if len(wrong) == 0 {
		in.Lease = lease
	}
	return in, wrong
}

// path is where the request has the lease, and at where it has one of its fields.
func (in *OrderLeaseRequest) path() string {
	if in.fromHints {
		return "scheduler_hints"
	}
	return "lease"
}

func (in *OrderLeaseRequest) at(field string) string {
	if in.fromHints {
		return in.path() + ".lease_" + field
	}
	return in.path() + "." + field
}
