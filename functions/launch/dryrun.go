package launch

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// DryRun reports what would make the launch fail. It makes and stores nothing.
func (s service) DryRun(ctx context.Context, a access, req createOrder) (launchReport, error) {
	out := launchReport{Problems: []launchProblem{}, Unchecked: []launchUnchecked{}}
	for _, p := range req.permissions() {
		if err := a.Permits(p); err != nil {
			out.add("connection_id", apperr.CodeOf(err), "%s", apperr.As(err).Message)
		}
	}
	var err error
	if a.cloud == nil {
		err = s.checkConnection(ctx, a, req, &out)
	} else {
		err = s.checkCloud(ctx, a, req, &out)
	}
	if err != nil {
		return launchReport{}, err
	}
	if err := s.checkIDs(ctx, a.ProjectID, req, &out); err != nil {
		return launchReport{}, err
	}
	out.OK = len(out.Problems) == 0
	return out, nil
}

// checkCloud compares the request with what the caller's token can read.
func (s service) checkCloud(ctx context.Context, a access, req createOrder, out *launchReport) error {
	reserved, err := s.reserved(ctx, a, req)
	found, errs := resolve(ctx, a.cloud, req, reserved)
	if err != nil {
		errs = append(errs, err)
	}
	if err := s.checkCallback(req.callback); err != nil {
		errs = append(errs, err)
	}
	if err := out.addErrors(errs); err != nil {
		return err
	}
	if len(errs) > 0 {
		found = nil
	}
	if !a.Identity.MayAct() {
		out.add("X-Auth-Token", apperr.Forbidden, "only reads: none of its roles permits changes")
	}
	if err := s.checkLease(ctx, a, req, out); err != nil {
		return err
	}
	facts, err := gather(ctx, a.cloud, req, found)
	if err != nil {
		return err
	}
	for n, f := range found {
		i := req.items[n]
		out.Resolved = append(out.Resolved, launchResolved{
			i.name, f.spec.FlavorID, f.spec.ImageID, f.spec.NetworkIDs, f.spec.ServerGroup,
		})
		out.checkImage(i, f)
		out.checkDisk(a.Identity, i, f)
		out.checkNetworks(a.Identity, f.networks, facts.networks)
		out.checkFixedIPs(i, f.networks, facts.networks)
	}
	out.checkQuota(req, found, facts)
	out.checkAddresses(found, facts)
	out.checkRoom(req, found, facts)
	out.checkVolumes(req, facts.volumes)
	out.checkFloatingIPs(req, facts.floating, facts.floatingWithheld)
	if err := out.addErrors(resolveFloatingIPs(ctx, a.cloud, req, found)); err != nil {
		return err
	}
	for _, i := range req.items {
		for field, why := range facts.withheld {
			if why != "" {
				out.unchecked(i.fields[field], why)
			}
		}
	}
	return out.addErrors(facts.check(req))
}

const isTaken = "is taken: something else of the project has it"

// checkIDs rejects ids that are taken, unless this very order has them.
func (s service) checkIDs(ctx context.Context, projectID string, req createOrder, r *launchReport) error {
	order, err := s.orders.Get(ctx, projectID, req.id)
	switch {
	case err == nil && bytes.Equal(order.BodySHA256, req.hash[:]):
		return nil
	case err == nil:
		r.add("id", apperr.Conflict, "belongs to another order: the same id needs the same request")
	case apperr.CodeOf(err) != apperr.NotFound:
		return err
	}
	ids := []uuid.UUID{req.id}
	for _, i := range req.items {
		ids = append(ids, i.id)
	}
	taken, takenErr := s.orders.ListTaken(ctx, projectID, ids)
	for n, id := range ids {
		switch {
		case !slices.Contains(taken, id):
		case n > 0:
			r.add(inInstance(n-1)("id"), apperr.Conflict, isTaken)
		case err != nil: // no order has the id
			r.add("id", apperr.Conflict, isTaken)
		}
	}
	return takenErr
}

// addErrors adds the errors that have fields, and returns the first other one.
func (r *launchReport) addErrors(errs []error) error {
	for _, err := range errs {
		if len(apperr.As(err).Fields) == 0 {
			return err
		}
		r.addError(err)
	}
	return nil
}

// addError adds the fields of an error.
func (r *launchReport) addError(err error) {
	e := apperr.As(err)
	for _, f := range e.Fields {
		r.addProblem(launchProblem{Field: f.Field, Code: e.Code, Detail: f.Detail, Allowed: f.Allowed})
	}
}

func (r *launchReport) add(field string, code apperr.Code, format string, args ...any) {
	r.addProblem(launchProblem{Field: field, Code: code, Detail: fmt.Sprintf(format, args...)})
}

// addProblem adds a problem, unless another server had it already.
func (r *launchReport) addProblem(p launchProblem) {
	isSame := func(o launchProblem) bool { return o.Field == p.Field && o.Detail == p.Detail }
	if !slices.ContainsFunc(r.Problems, isSame) {
		r.Problems = append(r.Problems, p)
	}
}

func (r *launchReport) checkImage(i item, f resolved) {
	if !i.bootsFromImage() {
		return
	}
	if !lookup.IsActive(f.image) {
		r.add(i.image.Field, apperr.Conflict, "the image is %s", f.image.Status)
	}
	image := f.image
	if _, ok := i.spec.BootVolume(); ok {
		image = withoutDisk(image)
	}
	for _, why := range tooSmall(f.flavor, image) {
		r.add(i.sizeField(), apperr.Invalid, "%s", why)
	}
}

// sizeField is the field that gives the server's size.
func (i item) sizeField() string {
	if i.min != nil {
		return i.fields["min"]
	}
	return i.flavor.Field
}

// checkDisk rejects a flavor without a disk: Nova's policy os_compute_api:servers:create:zero_disk_flavor lets only
// admins boot one from an image.
func (r *launchReport) checkDisk(who domain.Identity, i item, f resolved) {
	_, ok := i.spec.BootVolume()
	if f.flavor.DiskGB == 0 && !ok && !who.Has("admin") {
		r.add(i.sizeField(), apperr.Forbidden,
			"has no disk: Nova lets only admins boot it from an image; choose a flavor with a disk, or a boot_volume")
	}
}

// checkNetworks rejects networks that Nova does not attach: external ones that are not shared, except for admins (its
// policy network:attach_external_network), and those without a subnet.
func (r *launchReport) checkNetworks(who domain.Identity, refs []lookup.Ref, networks []domain.Network) {
	for _, ref := range refs {
		n := slices.IndexFunc(networks, func(n domain.Network) bool { return n.ID == ref.Value })
		switch {
		case n < 0:
		case networks[n].External && !networks[n].Shared && !who.Has("admin"):
			r.add(ref.Field, apperr.Forbidden,
				"is an external network that is not shared: launch on another and give the server a floating IP")
		case len(networks[n].Subnets) == 0:
			r.add(ref.Field, apperr.Invalid, "has no subnet, and so no addresses")
		}
	}
}

func (r *launchReport) checkQuota(req createOrder, found []resolved, facts facts) {
	var need domain.Need
	for _, f := range found {
		need.Add(f.spec)
	}
	r.checkNeed(req.count, facts.quota, need)
	pairs := domain.QuotaItem{Max: facts.quota.KeyPairs, Used: len(facts.keys)}
	if req.generateKey && !pairs.Fits(1) {
		r.add("generate_key", apperr.Quota, "needs 1 key pair, 0 of %d are left", pairs.Max)
	}
}

// checkNeed compares what the servers need with what is left of the project's quota.
func (r *launchReport) checkNeed(field string, quota domain.Quota, need domain.Need) {
	for _, detail := range quota.Shortages(need) {
		r.add(field, apperr.Quota, "%s", detail)
	}
}

// checkAddresses compares the servers' ports in each network with its free addresses. A port gets an address of each IP
// version that the network has.
func (r *launchReport) checkAddresses(found []resolved, facts facts) {
	fields, need := map[string]string{}, map[string]int{}
	for _, f := range found {
		for _, n := range f.networks {
			if need[n.Value]++; fields[n.Value] == "" {
				fields[n.Value] = n.Field
			}
		}
	}
	for id, n := range need {
		free, known := facts.free[id]
		if !known {
			r.unchecked(fields[id], "free addresses: "+facts.freeWithheld)
		}
		for version, left := range free {
			if left < float64(n) {
				r.add(fields[id], apperr.Conflict, "has %.0f IPv%d addresses left, %d are needed", left, version, n)
			}
		}
	}
}

// checkRoom compares the number of servers of each flavor with what fits on the hosts.
func (r *launchReport) checkRoom(req createOrder, found []resolved, facts facts) {
	need := map[string]int{}
	for _, f := range found {
		need[f.flavor.ID]++
	}
	for n, f := range found {
		field := req.items[n].sizeField()
		room, known := facts.room[f.flavor.ID]
		switch {
		case !known:
			r.unchecked(field, "hosts that fit: "+facts.roomWithheld[f.flavor.ID])
		case room < need[f.flavor.ID]:
			r.add(field, apperr.Conflict, "the hosts have room for %d more servers of %s, %d are needed",
				room, f.flavor.Name, need[f.flavor.ID])
		}
	}
}

func (r *launchReport) unchecked(field, detail string) {
	if part := (launchUnchecked{field, detail}); !slices.Contains(r.Unchecked, part) {
		r.Unchecked = append(r.Unchecked, part)
	}
}

// facts are what a dry run compares an order with.
type facts struct {
	names

	volumes volumeFacts
	quota   domain.Quota

	floating         domain.QuotaItem // of floating IPs
	floatingWithheld string           // why that is unknown

	networks     []domain.Network
	free         map[string]map[int]float64 // addresses by network and IP version
	freeWithheld string                     // why those are unknown
	room         map[string]int             // servers that the hosts have room for, by flavor
	roomWithheld map[string]string          // why that is unknown
}

// gather reads what the checks need.
func gather(ctx context.Context, cloud *openstack.Session, req createOrder, found []resolved) (out facts, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(orders.Parallel)
	group.Go(func() (err error) {
		out.quota, err = cloud.Quota(ctx)
		return err
	})
	group.Go(func() (err error) {
		out.networks, err = cloud.Networks(ctx)
		return err
	})
	group.Go(func() (err error) {
		out.names, err = readNames(ctx, cloud, req)
		return err
	})
	group.Go(func() (err error) {
		out.volumes, err = readVolumes(ctx, cloud, req)
		return err
	})
	if req.spec.FloatingIPs {
		group.Go(func() (err error) {
			if out.floating, err = cloud.FloatingIPQuota(ctx); err != nil {
				out.floatingWithheld, err = whyWithheld(err)
			}
			return err
		})
	}
	out.space(ctx, group, cloud, found)
	err = group.Wait()
	return out, err
}

// space counts free addresses and room on the hosts. The cloud's policy may withhold both from the caller.
func (out *facts) space(ctx context.Context, group *errgroup.Group, cloud *openstack.Session, found []resolved) {
	out.room, out.roomWithheld = map[string]int{}, map[string]string{}
	var ids []string
	flavors := map[string]domain.Flavor{}
	for _, f := range found {
		ids = append(ids, f.spec.NetworkIDs...)
		needed := f.flavor
		if _, ok := f.spec.BootVolume(); ok {
			needed.DiskGB = 0
		}
		needed.DiskGB = max(needed.DiskGB, flavors[needed.ID].DiskGB)
		flavors[needed.ID] = needed
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) > 0 {
		group.Go(func() (err error) {
			out.free, err = cloud.FreeAddresses(ctx, ids)
			out.freeWithheld, err = whyWithheld(err)
			return err
		})
	}
	var mu sync.Mutex
	for id, f := range flavors {
		group.Go(func() error {
			room, err := cloud.Room(ctx, f)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				out.room[id] = room
			}
			out.roomWithheld[id], err = whyWithheld(err)
			return err
		})
	}
}

const withheld = "the cloud withholds it from this token"

// whyWithheld explains why something is unknown: the cloud's policy withholds it, or the service that knows it is
// absent. Any other error is returned.
func whyWithheld(err error) (string, error) {
	code := apperr.CodeOf(err)
	switch {
	case err == nil, code == apperr.Forbidden, code == apperr.NotFound:
		return withheld, nil
	case code == apperr.Unsupported, code == apperr.Unavailable:
		return apperr.As(err).Message, nil
	}
	return "", err
}
