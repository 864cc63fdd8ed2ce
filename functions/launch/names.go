package launch

import (
	"context"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// names are the key pairs, security groups, zones and ports that there are. What no server has is not read.
type names struct {
	keys     []domain.KeyPair
	groups   []domain.SecurityGroup
	zones    []string
	ports    map[string]domain.Port
	withheld map[string]string // why those of a field are unknown
}

// readNames reads what the servers of an order may name.
func readNames(ctx context.Context, cloud cloud, req createOrder) (out names, err error) {
	group, ctx := errgroup.WithContext(ctx)
	anyItem := func(has func(item) bool) bool { return slices.ContainsFunc(req.items, has) }
	if req.generateKey || anyItem(func(i item) bool { return i.spec.KeyName != "" }) {
		group.Go(func() (err error) {
			out.keys, err = cloud.KeyPairs(ctx)
			return err
		})
	}
	var noGroups, noZones string
	if anyItem(func(i item) bool { return len(i.spec.SecurityGroups) > 0 }) {
		group.Go(func() (err error) {
			if out.groups, err = cloud.SecurityGroups(ctx); err != nil {
				noGroups, err = whyWithheld(err)
			}
			return err
		})
	}
	if anyItem(func(i item) bool { return i.spec.Zone != "" }) {
		group.Go(func() error {
			zones, err := cloud.Zones(ctx)
			for _, z := range zones {
				if z.Available {
					out.zones = append(out.zones, z.Name)
				}
			}
			if err != nil {
				noZones, err = whyWithheld(err)
			}
			return err
		})
	}
	group.Go(func() (err error) {
		out.ports, err = readPorts(ctx, cloud, req)
		return err
	})
	err = group.Wait()
	out.withheld = map[string]string{"security_groups": noGroups, "availability_zone": noZones}
	return out, err
}

const portReaders = 8

// readPorts reads the ports that the servers are to have. One that does not exist is left out.
func readPorts(ctx context.Context, cloud cloud, req createOrder) (map[string]domain.Port, error) {
	found, mu := map[string]domain.Port{}, sync.Mutex{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(portReaders)
	for _, i := range req.items {
		for _, n := range i.attachments {
			if n.PortID == "" {
				continue
			}
			group.Go(func() error {
				port, err := cloud.Port(ctx, n.PortID)
				if apperr.CodeOf(err) == apperr.NotFound {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				found[n.PortID] = port
				return err
			})
		}
	}
	return found, group.Wait()
}

// check lists the names of an order that nothing has. An admin's zone may name a host, too: nova:compute-1.
func (n names) check(req createOrder) []error {
	var wrong faults
	for _, i := range req.items {
		wrong = append(wrong, n.checkPorts(i)...)
		_, unknown := n.securityGroups(i)
		wrong = append(wrong, unknown...)
		zone, _, _ := strings.Cut(i.spec.Zone, ":")
		for _, part := range []struct {
			field, what string
			known       []string
			given       []string
		}{
			{"key_name", "key pair", n.keyNames(), []string{i.spec.KeyName}},
			{"availability_zone", "availability zone", n.zones, []string{zone}},
		} {
			for _, name := range part.given {
				if name != "" && n.withheld[part.field] == "" && !slices.Contains(part.known, name) {
					wrong.add(lookup.Absent(i.fields[part.field], part.what, name, part.known))
				}
			}
		}
	}
	return distinct(wrong)
}

// securityGroups are the ids of a server's security groups, or what the request has for them when they are unknown.
func (n names) securityGroups(i item) (ids []string, wrong []error) {
	if n.withheld["security_groups"] != "" {
		return i.spec.SecurityGroups, nil
	}
	return lookup.PickSecurityGroups(n.groups, i.fields["security_groups"], i.spec.SecurityGroups)
}

func (n names) keyNames() []string {
	list := make([]string, len(n.keys))
	for k, pair := range n.keys {
		list[k] = pair.Name
	}
	return list
}
