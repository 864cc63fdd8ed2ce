package launch

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// report is the answer to a dry run: everything that would make the launch fail, at once.
type report struct {
	OK        bool             `json:"ok"`
	Problems  []dryRunProblem  `json:"problems"`
	Unchecked []uncheckedPart  `json:"unchecked"`          // what the cloud does not let the caller find out
	AsOf      *time.Time       `json:"as_of,omitempty"`    // through a connection: when what is reported on was read; absent = it was not yet
	Resolved  []resolvedAnswer `json:"resolved,omitempty"` // what the names of each instance mean; absent when one means nothing
}

type dryRunProblem struct {
	Field   string      `json:"field"`
	Code    apperr.Code `json:"code"`
	Detail  string      `json:"detail"`
	Allowed []string    `json:"allowed,omitempty"`
}

type uncheckedPart struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

type resolvedAnswer struct {
	Name       string   `json:"name"`
	FlavorID   string   `json:"flavor_id"`
	ImageID    string   `json:"image_id,omitempty"` // through a connection this and the next are absent where they are looked up with the launch only
	NetworkIDs []string `json:"network_ids,omitempty"`
}

// DryRun says what would make the launch fail, without making anything. It stores nothing.
func (s service) DryRun(ctx context.Context, a access, req createOrder) (report, error) {
	out := report{Problems: []dryRunProblem{}, Unchecked: []uncheckedPart{}}
	for _, p := range req.permissions() {
		if err := a.Permits(p); err != nil {
			out.add("connection_id", apperr.CodeOf(err), "%s", apperr.As(err).Message)
		}
	}
	var err error
	if a.cloud == nil {
		err = s.checkSeen(ctx, a, req, &out)
	} else {
		err = s.checkCloud(ctx, a, req, &out)
	}
	if err != nil {
		return report{}, err
	}
	if err := s.checkIDs(ctx, a.ProjectID, req, &out); err != nil {
		return report{}, err
	}
	out.OK = len(out.Problems) == 0
	return out, nil
}

// checkCloud holds the request against what the caller's token shows.
func (s service) checkCloud(ctx context.Context, a access, req createOrder, out *report) error {
	found, errs := resolve(ctx, a.cloud, req)
	if err := out.noteAll(append(errs, s.checkCallback(req.callback))); err != nil {
		return err
	}
	if len(errs) > 0 || s.checkCallback(req.callback) != nil {
		found = nil
	}
	if !a.Identity.MayAct() {
		out.add("X-Auth-Token", apperr.Forbidden, "has no role but reader, which may not create servers")
	}
	facts, err := gather(ctx, a.cloud, req, found)
	if err != nil {
		return err
	}
	for n, f := range found {
		i := req.items[n]
		out.Resolved = append(out.Resolved, resolvedAnswer{i.name, f.spec.FlavorID, f.spec.ImageID, f.spec.NetworkIDs})
		out.checkImage(i, f)
		out.checkDisk(a.Identity, i, f)
		out.checkNetworks(a.Identity, f.networks, facts.networks)
	}
	out.checkQuota(req, found, facts)
	out.checkAddresses(found, facts)
	out.checkRoom(req, found, facts)
	for _, i := range req.items {
		out.checkNames(i.fields["key_name"], "key pair", oneOrNone(i.spec.KeyName), facts.keys)
		out.checkNames(i.fields["security_groups"], "security group", i.spec.SecurityGroups, facts.groups)
		out.checkNames(i.fields["availability_zone"], "availability zone", oneOrNone(i.spec.Zone), facts.zones)
	}
	return nil
}

const isTaken = "is taken: something else of the project has it"

// checkIDs refuses ids that are taken, unless this very order has them.
func (s service) checkIDs(ctx context.Context, projectID string, req createOrder, r *report) error {
	order, err := s.orders.Get(ctx, projectID, req.id)
	switch {
	case err == nil && bytes.Equal(order.BodySHA256, req.hash[:]):
		return nil
	case err == nil:
		r.add("id", apperr.Conflict, "is another order's: the same id needs the same request")
	case apperr.CodeOf(err) != apperr.NotFound:
		return err
	}
	ids := []uuid.UUID{req.id}
	for _, i := range req.items {
		ids = append(ids, i.id)
	}
	taken, takenErr := s.orders.Taken(ctx, projectID, ids)
	for n, id := range ids {
		switch {
		case !slices.Contains(taken, id):
		case n > 0:
			r.add(inInstance(n-1)("id"), apperr.Conflict, isTaken)
		case err != nil: // there is no such order
			r.add("id", apperr.Conflict, isTaken)
		}
	}
	return takenErr
}

// noteAll takes errors that name fields into the report, and gives the first other one. nil is none.
func (r *report) noteAll(errs []error) error {
	for _, err := range errs {
		if err != nil && len(apperr.As(err).Fields) == 0 {
			return err
		}
		r.note(err)
	}
	return nil
}

// note takes an error that names fields into the report, each problem once. nil is none.
func (r *report) note(err error) {
	if err == nil {
		return
	}
	e := apperr.As(err)
	for _, f := range e.Fields {
		r.addOne(dryRunProblem{Field: f.Field, Code: e.Code, Detail: f.Detail, Allowed: f.Allowed})
	}
}

// add takes a problem into the report, once.
func (r *report) add(field string, code apperr.Code, format string, args ...any) {
	r.addOne(dryRunProblem{Field: field, Code: code, Detail: fmt.Sprintf(format, args...)})
}

func (r *report) addOne(p dryRunProblem) {
	if !slices.ContainsFunc(r.Problems, func(o dryRunProblem) bool { return o.Field == p.Field && o.Detail == p.Detail }) {
		r.Problems = append(r.Problems, p)
	}
}

func (r *report) checkImage(i item, f resolved) {
	if !lookup.IsActive(f.image) {
		r.add(i.image.Field, apperr.Conflict, "the image is %s", f.image.Status)
	}
	for _, why := range tooSmall(f.flavor, f.image) {
		r.add(i.sizeField(), apperr.Invalid, "%s", why)
	}
}

// sizeField is where the request says how large the server is.
func (i item) sizeField() string {
	if i.min != nil {
		return i.fields["min"]
	}
	return i.flavor.Field
}

// checkDisk refuses a flavor without a disk: Nova's policy os_compute_api:servers:create:zero_disk_flavor lets only
// admins boot one from an image.
func (r *report) checkDisk(who domain.Identity, i item, f resolved) {
	if f.flavor.DiskGB == 0 && !who.Has("admin") {
		r.add(i.sizeField(), apperr.Forbidden, "has no disk: Nova lets only admins boot it from an image; choose a flavor with a disk")
	}
}

// checkNetworks holds the networks against what Nova lets be launched on. An external one must be shared with the
// project, except for admins (Nova's policy network:attach_external_network).
func (r *report) checkNetworks(who domain.Identity, refs []lookup.Ref, networks []domain.Network) {
	for _, ref := range refs {
		n := slices.IndexFunc(networks, func(n domain.Network) bool { return n.ID == ref.Value })
		switch {
		case n < 0:
		case networks[n].External && !networks[n].Shared && !who.Has("admin"):
			r.add(ref.Field, apperr.Forbidden, "is an external network that is not shared: launch on another and give the server a floating IP")
		case len(networks[n].Subnets) == 0:
			r.add(ref.Field, apperr.Invalid, "has no subnet, so there is no address to give")
		}
	}
}

func (r *report) checkQuota(req createOrder, found []resolved, facts facts) {
	var need domain.Need
	for _, f := range found {
		need.Add(f.spec)
	}
	r.checkNeed(req.count, facts.quota, need)
	if pairs := (domain.QuotaItem{Max: facts.quota.KeyPairs, Used: len(facts.keys)}); req.generateKey && !pairs.Fits(1) {
		r.add("generate_key", apperr.Quota, "needs 1 key pair, 0 of %d are left", pairs.Max)
	}
}

// checkNeed holds what the servers take against what is left of the project's quota.
func (r *report) checkNeed(field string, quota domain.Quota, need domain.Need) {
	for _, q := range []struct {
		what string
		item domain.QuotaItem
		need int
	}{
		{"instances", quota.Instances, need.Instances},
		{"vcpus", quota.VCPUs, need.VCPUs},
		{"ram_mb", quota.RAMMB, need.RAMMB},
	} {
		if !q.item.Fits(q.need) {
			r.add(field, apperr.Quota, "needs %d %s, %d of %d are left", q.need, q.what, max(0, q.item.Max-q.item.Used), q.item.Max)
		}
	}
}

// checkAddresses holds what the servers need of each network against what is left. A port gets an address of each IP
// version that the network has.
func (r *report) checkAddresses(found []resolved, facts facts) {
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

// checkRoom holds how many servers of each flavor are wanted against what the hosts have room for.
func (r *report) checkRoom(req createOrder, found []resolved, facts facts) {
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
			r.add(field, apperr.Conflict, "the hosts have room for %d more servers of %s, %d are needed", room, f.flavor.Name, need[f.flavor.ID])
		}
	}
}

func (r *report) unchecked(field, detail string) {
	if part := (uncheckedPart{field, detail}); !slices.Contains(r.Unchecked, part) {
		r.Unchecked = append(r.Unchecked, part)
	}
}

// checkNames refuses names that are not there. A security group may also be given by its id.
func (r *report) checkNames(field, what string, wanted, there []string) {
	for _, name := range wanted {
		if !slices.Contains(there, name) {
			r.addOne(dryRunProblem{
				Field: field, Code: apperr.Invalid, Detail: fmt.Sprintf("there is no %s %q", what, name), Allowed: lookup.Some(slices.Clone(there)),
			})
		}
	}
}

func oneOrNone(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}
