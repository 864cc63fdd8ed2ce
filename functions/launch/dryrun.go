package launch

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// report is the answer to a dry run: everything that would make the launch fail, at once.
type report struct {
	OK       bool            `json:"ok"`
	Problems []dryRunProblem `json:"problems"`
	Resolved *resolvedAnswer `json:"resolved,omitempty"` // what the names mean; absent when one means nothing
}

type dryRunProblem struct {
	Field   string      `json:"field"`
	Code    apperr.Code `json:"code"`
	Detail  string      `json:"detail"`
	Allowed []string    `json:"allowed,omitempty"`
}

type resolvedAnswer struct {
	FlavorID   string   `json:"flavor_id"`
	ImageID    string   `json:"image_id"`
	NetworkIDs []string `json:"network_ids"`
}

// DryRun says what would make the launch fail, without making anything. It stores nothing.
func (s service) DryRun(ctx context.Context, who domain.Identity, token domain.Secret, w wish) (report, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	out := report{Problems: []dryRunProblem{}}
	found, errs := resolve(ctx, cloud, w)
	for _, err := range errs {
		if !out.note(err) {
			return report{}, err
		}
	}
	if len(errs) == 0 {
		out.Resolved = &resolvedAnswer{found.spec.FlavorID, found.spec.ImageID, found.spec.NetworkIDs}
		out.checkImage(found.image, found.flavor)
	}
	facts, err := gather(ctx, cloud, w)
	if err != nil {
		return report{}, err
	}
	if out.Resolved != nil {
		out.checkQuota(found, facts.quota)
		out.checkNetworks(found.spec.NetworkIDs, facts.networks)
	}
	out.checkNames("key_name", "key pair", oneOrNone(w.spec.KeyName), facts.keys)
	out.checkNames("security_groups", "security group", w.spec.SecurityGroups, facts.groups)
	out.checkNames("availability_zone", "availability zone", oneOrNone(w.spec.Zone), facts.zones)
	out.OK = len(out.Problems) == 0
	return out, nil
}

// note takes an error that names fields into the report; false for any other error.
func (r *report) note(err error) bool {
	e := apperr.As(err)
	for _, f := range e.Fields {
		r.Problems = append(r.Problems, dryRunProblem{Field: f.Field, Code: e.Code, Detail: f.Detail, Allowed: f.Allowed})
	}
	return len(e.Fields) > 0
}

func (r *report) add(field string, code apperr.Code, format string, args ...any) {
	r.Problems = append(r.Problems, dryRunProblem{Field: field, Code: code, Detail: fmt.Sprintf(format, args...)})
}

const gib = 1 << 30

func (r *report) checkImage(image domain.Image, flavor domain.Flavor) {
	if !isActive(image) {
		r.add("image", apperr.Conflict, "the image is %s", image.Status)
	}
	if flavor.DiskGB > 0 && flavor.DiskGB < image.MinDiskGB {
		r.add("flavor", apperr.Invalid, "has a disk of %d GB, the image needs %d GB", flavor.DiskGB, image.MinDiskGB)
	}
	if size := (image.SizeBytes + gib - 1) / gib; flavor.DiskGB > 0 && int64(flavor.DiskGB) < size {
		r.add("flavor", apperr.Invalid, "has a disk of %d GB, the image alone has %d GB", flavor.DiskGB, size)
	}
	if flavor.RAMMB < image.MinRAMMB {
		r.add("flavor", apperr.Invalid, "has %d MB of memory, the image needs %d MB", flavor.RAMMB, image.MinRAMMB)
	}
}

func (r *report) checkNetworks(wanted []string, networks []domain.Network) {
	for _, n := range networks {
		i := slices.Index(wanted, n.ID)
		if i >= 0 && n.External {
			r.add(fmt.Sprintf("networks[%d]", i), apperr.Forbidden, "is an external network: launch on another and give the server a floating IP")
		}
		if i >= 0 && !n.External && len(n.Subnets) == 0 {
			r.add(fmt.Sprintf("networks[%d]", i), apperr.Invalid, "has no subnet, so there is no address to give")
		}
	}
}

func (r *report) checkQuota(found resolved, quota domain.Quota) {
	n := found.spec.Count
	for _, q := range []struct {
		what string
		item domain.QuotaItem
		need int
	}{
		{"instances", quota.Instances, n},
		{"vcpus", quota.VCPUs, n * found.flavor.VCPUs},
		{"ram_mb", quota.RAMMB, n * found.flavor.RAMMB},
	} {
		if !q.item.Fits(q.need) {
			r.add("count", apperr.Quota, "needs %d %s, %d of %d are left", q.need, q.what, q.item.Max-q.item.Used, q.item.Max)
		}
	}
}

// checkNames refuses names that are not there. A security group may also be given by its id.
func (r *report) checkNames(field, what string, wanted, there []string) {
	for _, name := range wanted {
		if !slices.Contains(there, name) {
			r.Problems = append(r.Problems, dryRunProblem{
				Field: field, Code: apperr.Invalid, Detail: fmt.Sprintf("there is no %s %q", what, name), Allowed: some(slices.Clone(there)),
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

type facts struct {
	quota               domain.Quota
	networks            []domain.Network
	keys, groups, zones []string
}

// gather reads what the checks need, and only that.
func gather(ctx context.Context, cloud session, w wish) (out facts, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		out.quota, err = cloud.Quota(ctx)
		return err
	})
	group.Go(func() (err error) {
		out.networks, err = cloud.Networks(ctx)
		return err
	})
	if w.spec.KeyName != "" {
		group.Go(func() error {
			found, err := cloud.KeyPairs(ctx)
			for _, k := range found {
				out.keys = append(out.keys, k.Name)
			}
			return err
		})
	}
	if len(w.spec.SecurityGroups) > 0 {
		group.Go(func() error {
			found, err := cloud.SecurityGroups(ctx)
			for _, g := range found {
				out.groups = append(out.groups, g.Name, g.ID)
			}
			return err
		})
	}
	if w.spec.Zone != "" {
		group.Go(func() error {
			found, err := cloud.Zones(ctx)
			for _, z := range found {
				if z.Available {
					out.zones = append(out.zones, z.Name)
				}
			}
			return err
		})
	}
	err = group.Wait()
	return out, err
}
