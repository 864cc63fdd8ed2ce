package openstack

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/aggregates"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Host aggregates, by default the cloud's admins only. Each call succeeds when what it requests is so already.
//
// Nova's scheduler isolates hosts by Placement's copy of an aggregate, where its uuid is listed at the provider of each
// host. nova-api writes that copy after its own, and when it cannot it only logs a warning, and answers 200. So
// AddHost looks at the copy, and completes it. An aggregate must have its metadata before it has hosts: until then
// every project's servers may land on them.

// Aggregates lists the host aggregates.
func (s *Session) Aggregates(ctx context.Context) ([]domain.Aggregate, error) {
	var body struct {
		Aggregates []aggregates.Aggregate `json:"aggregates"`
	}
	err := s.getNova(ctx, computeAggregateIDs, &body, "os-aggregates")
	return convert(body.Aggregates, err, func(a aggregates.Aggregate) domain.Aggregate { return aggregate(&a) })
}

func aggregate(a *aggregates.Aggregate) domain.Aggregate {
	return domain.Aggregate{ID: a.ID, UUID: a.UUID, Name: a.Name, Hosts: a.Hosts, Metadata: a.Metadata}
}

// Aggregate reads one aggregate.
func (s *Session) Aggregate(ctx context.Context, id int) (domain.Aggregate, error) {
	return s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.Get(ctx, nova, id).Extract()
	})
}

func (s *Session) onAggregate(
	ctx context.Context, call func(*gophercloud.ServiceClient) (*aggregates.Aggregate, error),
) (domain.Aggregate, error) {
	nova, err := s.compute(ctx, computeAggregateIDs)
	if err != nil {
		return domain.Aggregate{}, err
	}
	found, err := call(nova)
	if err != nil {
		return domain.Aggregate{}, classify("nova", err)
	}
	return aggregate(found), nil
}

// EnsureAggregate finds or makes the aggregate of that name, and gives it the metadata. Other metadata of it stays.
func (s *Session) EnsureAggregate(
	ctx context.Context, name string, metadata map[string]string,
) (domain.Aggregate, error) {
	found, ok, err := s.FindAggregate(ctx, name)
	if err == nil && !ok {
		found, err = s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
			return aggregates.Create(ctx, nova, aggregates.CreateOpts{Name: name}).Extract()
		})
		if apperr.CodeOf(err) == apperr.Conflict { // another request was faster
			found, err = s.foundAgain(ctx, name, err)
		}
	}
	if err != nil {
		return domain.Aggregate{}, err
	}
	missing := aggregates.SetMetadataOpts{Metadata: map[string]any{}}
	for key, value := range metadata {
		if found.Metadata[key] != value {
			missing.Metadata[key] = value
		}
	}
	if len(missing.Metadata) == 0 {
		return found, nil
	}
	return s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.SetMetadata(ctx, nova, found.ID, missing).Extract()
	})
}

// noAggregate is no aggregate's id: Nova counts from 1.
const noAggregate = 0

// MayChangeAggregates fails for a caller whom Nova's policy forbids to change aggregates. It renames an aggregate that
// does not exist: Nova checks its policy first.
func (s *Session) MayChangeAggregates(ctx context.Context) error {
	_, err := s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.Update(ctx, nova, noAggregate, aggregates.UpdateOpts{Name: "cloudfn"}).Extract()
	})
	return absentIsDone(err)
}

// FindAggregate finds the aggregate of a name. ok is false when no aggregate has it.
func (s *Session) FindAggregate(ctx context.Context, name string) (found domain.Aggregate, ok bool, err error) {
	all, err := s.Aggregates(ctx)
	for _, a := range all {
		if a.Name == name {
			return a, true, err
		}
	}
	return domain.Aggregate{}, false, err
}

// foundAgain is the aggregate that Nova says to be there already.
func (s *Session) foundAgain(ctx context.Context, name string, refused error) (domain.Aggregate, error) {
	found, ok, err := s.FindAggregate(ctx, name)
	if err == nil && !ok {
		err = refused
	}
	return found, err
}

// AddHost puts a host into an aggregate, in Nova and in Placement, where providerID is the host's.
func (s *Session) AddHost(ctx context.Context, a domain.Aggregate, host, providerID string) error {
	_, err := s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.AddHost(ctx, nova, a.ID, aggregates.AddHostOpts{Host: host}).Extract()
	})
	if apperr.CodeOf(err) == apperr.Conflict {
		if now, again := s.Aggregate(ctx, a.ID); again == nil && slices.Contains(now.Hosts, host) {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return s.setProviderAggregate(ctx, providerID, a.UUID, true)
}

// RemoveHost takes a host out of an aggregate, in Nova and in Placement. Placement is first, as Nova itself does it:
// what fails in between is still in Nova's list, and is found at the next try.
func (s *Session) RemoveHost(ctx context.Context, a domain.Aggregate, host, providerID string) error {
	if err := absentIsDone(s.setProviderAggregate(ctx, providerID, a.UUID, false)); err != nil {
		return err
	}
	_, err := s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.RemoveHost(ctx, nova, a.ID, aggregates.RemoveHostOpts{Host: host}).Extract()
	})
	if apperr.CodeOf(err) != apperr.NotFound {
		return err
	}
	now, again := s.Aggregate(ctx, a.ID)
	if again == nil && slices.Contains(now.Hosts, host) { // Nova knows the host no more, and keeps it in the list
		return err
	}
	return absentIsDone(again)
}

// DeleteAggregate deletes an aggregate without hosts. Nova refuses one that has any.
func (s *Session) DeleteAggregate(ctx context.Context, id int) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return absentIsDone(classify("nova", aggregates.Delete(ctx, nova, id).ExtractErr()))
}

// Whether a cloud keeps servers off isolated hosts is a setting of its scheduler that no API shows
// (enable_isolated_aggregate_filtering). So it is tried: a tiny server without any trait is requested on the host.

const (
	probeTag   = "cloudfn-probe"
	probePause = 500 * time.Millisecond
)

// ProbeHost tries whether a server that requests no trait gets onto the host, and waits for the answer until ctx ends:
// proven when no host is valid for it, unproven when the host takes it. The server has no network, and is deleted in
// any case; one that a crash has left is deleted by the next ProbeHost of the host, or by DeleteProbes. It is a
// Conflict when the host is down, disabled or full: then a refusal would prove nothing. It needs the right to name a
// host for a server, by default the cloud's admins'.
func (s *Session) ProbeHost(ctx context.Context, name string) (domain.Isolation, error) {
	if err := s.DeleteProbes(ctx, name); err != nil {
		return domain.Isolation{}, err
	}
	host, err := s.ComputeHost(ctx, name)
	if err != nil {
		return domain.Isolation{}, err
	}
	if !host.IsUp || !host.IsEnabled {
		return domain.Isolation{}, apperr.New(apperr.Conflict, "host %s is down or disabled", name)
	}
	if host, err = s.HostInventory(ctx, host); err != nil {
		return domain.Isolation{}, err
	}
	flavor, image, err := s.probeOf(ctx, host)
	if err != nil {
		return domain.Isolation{}, err
	}
	found, err := s.probe(ctx, name, flavor, image)
	// Also when ctx has ended: a server that stays would keep the host from being reserved.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if left := s.DeleteProbes(clean, name); err == nil {
		err = left
	}
	return found, err
}

// probeOf chooses the smallest public flavor that requests nothing but its sizes and fits, and an image for it.
func (s *Session) probeOf(ctx context.Context, host domain.ComputeHost) (flavorID, imageID string, err error) {
	sizes, err := s.Flavors(ctx)
	if err != nil {
		return "", "", err
	}
	slices.SortFunc(sizes, func(a, b domain.Flavor) int {
		return cmp.Or(cmp.Compare(a.RAMMB, b.RAMMB), cmp.Compare(a.DiskGB, b.DiskGB), cmp.Compare(a.VCPUs, b.VCPUs))
	})
	images, err := s.Images(ctx, "")
	if err != nil {
		return "", "", err
	}
	free := domain.Flavor{
		VCPUs: host.VCPUs - host.UsedVCPUs, RAMMB: host.RAMMB - host.UsedRAMMB, DiskGB: host.DiskGB - host.UsedDiskGB,
	}
	for _, f := range sizes {
		if !f.Public || f.VCPUs > free.VCPUs || f.RAMMB > free.RAMMB || f.DiskGB > free.DiskGB {
			continue
		}
		specs, err := s.FlavorSpecs(ctx, f.ID)
		if err != nil {
			return "", "", err
		}
		for _, i := range images {
			if len(specs) == 0 && i.Visibility == "public" && i.Status == "active" &&
				i.MinRAMMB <= f.RAMMB && i.MinDiskGB <= f.DiskGB {
				return f.ID, i.ID, nil
			}
		}
	}
	return "", "", apperr.New(apperr.Conflict, "no public flavor without extra specs fits both an image and host %s",
		host.Name)
}

// probe makes the server and waits until Nova has decided.
func (s *Session) probe(ctx context.Context, host, flavorID, imageID string) (domain.Isolation, error) {
	nova, err := s.compute(ctx, computeRequestedHost)
	if err != nil {
		return domain.Isolation{}, err
	}
	made, err := servers.Create(ctx, nova, pinned{servers.CreateOpts{
		Name: domain.ProbePrefix + host, FlavorRef: flavorID, ImageRef: imageID, Networks: "none",
		Tags: []string{probeTag},
	}, host}, nil).Extract()
	if err != nil {
		return domain.Isolation{}, classify("nova", err)
	}
	for {
		found, err := s.placed(ctx, made.ID)
		switch {
		case apperr.CodeOf(err) == apperr.NotFound:
			return domain.Isolation{}, apperr.Wrap(apperr.Conflict, err,
				"another self-test of host %s has deleted the server of this one", host)
		case err != nil:
			return domain.Isolation{}, err
		case found.Host != "":
			return domain.Isolation{
				Result: domain.IsolationUnproven,
				Detail: "a server without the trait was placed on " + found.Host + ": nova.conf of the scheduler " +
					"needs [scheduler] enable_isolated_aggregate_filtering = true",
			}, nil
		case found.Status == "ERROR" && found.Fault != nil && strings.Contains(found.Fault.Message, "No valid host"):
			return domain.Isolation{
				Result: domain.IsolationProven,
				Detail: "a server without the trait was refused on " + host,
			}, nil
		case found.Status == "ERROR":
			return domain.Isolation{}, apperr.New(apperr.Unavailable, "the test server failed for another reason: %s",
				faultText(found.Fault))
		case !flow.Sleep(ctx, probePause):
			return domain.Isolation{}, classify("nova", ctx.Err())
		}
	}
}

func faultText(f *domain.Fault) string {
	if f == nil {
		return "Nova names none"
	}
	return f.Message
}

// pinned requests a host, which gophercloud cannot.
type pinned struct {
	servers.CreateOpts
	host string
}

// ToServerCreateMap is what gophercloud sends.
func (p pinned) ToServerCreateMap() (map[string]any, error) {
	body, err := p.CreateOpts.ToServerCreateMap()
	if err == nil {
		body["server"].(map[string]any)["host"] = p.host //nolint:forcetypeassert // gophercloud's own shape
	}
	return body, err
}

// placed reads a server with the host that it is on.
func (s *Session) placed(ctx context.Context, id string) (domain.Server, error) {
	var body struct {
		Server server `json:"server"`
	}
	err := s.getNova(ctx, computeBase, &body, "servers", id)
	return body.Server.domain(), err
}

// DeleteProbes deletes what ProbeHost has left of the host, and waits until it is deleted.
func (s *Session) DeleteProbes(ctx context.Context, host string) error {
	named := listQuery(domain.ServerQuery{Name: domain.ProbePrefix + host})
	query := url.Values{"tags": {probeTag}, "name": named["name"]}
	for {
		var left []string
		if err := s.eachServer(ctx, computeTags, query, func(found *server) {
			if found.Name == domain.ProbePrefix+host {
				left = append(left, found.ID)
			}
		}); err != nil || len(left) == 0 {
			return err
		}
		for _, id := range left {
			if err := s.DeleteServer(ctx, id); err != nil && apperr.CodeOf(err) != apperr.Conflict { // else again
				return err
			}
		}
		if !flow.Sleep(ctx, probePause) {
			return classify("nova", ctx.Err())
		}
	}
}
