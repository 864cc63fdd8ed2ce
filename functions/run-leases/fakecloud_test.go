package runleases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
)

// fakeCloud is the part of Nova and Placement in which hosts are reserved. A host's provider has its name. called is
// called after each call.
type fakeCloud struct {
	leases.Cloud // nil: what a test does not expect

	called     func(name string)
	aggregates map[string]*domain.Aggregate
	traits     map[string]bool
	provided   map[string]map[string]bool // traits, by host
	flavors    map[string]*fakeFlavor
	servers    map[string]*domain.Server
	open       string // the host that lets everybody's servers in
	broken     string // the server that stays in ERROR
	locked     []string
	resets     int
	made       int
	probed     int    // hosts
	fails      string // the call that fails; "" = none
	isLost     bool   // the answers to ResetServer are
	probing    sync.Mutex
}

type fakeFlavor struct {
	domain.PrivateFlavor

	projects []string
}

func newFakeCloud(hosts ...string) *fakeCloud {
	c := &fakeCloud{
		called: func(string) {}, aggregates: map[string]*domain.Aggregate{}, traits: map[string]bool{},
		provided: map[string]map[string]bool{}, flavors: map[string]*fakeFlavor{},
		servers: map[string]*domain.Server{},
	}
	for _, h := range hosts {
		c.provided[h] = map[string]bool{}
	}
	return c
}

// secretWords are what the failing call says to the admin.
const secretWords = "nova: compute-secret in aggregate-secret: Host not found"

func (c *fakeCloud) failure(call string) error {
	if c.fails != call {
		return nil
	}
	return apperr.Wrap(apperr.Conflict, errors.New("nova answered PUT with 409"), secretWords)
}

// tenant is the project of the leases.
const tenant = "p"

// launch places a server of the tenant with a flavor, or with no flavor and an image that requires the traits, as
// Nova's scheduler does it. It returns the host, "" for none.
func (c *fakeCloud) launch(flavor string, traits ...string) (id, host string) {
	name := "m1.tiny"
	if f := c.flavors[flavor]; f != nil && slices.Contains(f.projects, tenant) {
		name = f.Name
		for spec := range f.ExtraSpecs {
			traits = append(traits, strings.TrimPrefix(spec, "trait:"))
		}
	} else if flavor != "" {
		return "", ""
	}
	for _, host := range slices.Sorted(maps.Keys(c.provided)) {
		if c.admits(host, traits) {
			c.made++
			id := fmt.Sprintf("server-%d", c.made)
			c.servers[id] = &domain.Server{
				ID: id, ProjectID: tenant, Host: host, Status: "ACTIVE", Flavor: domain.FlavorRef{Name: name},
			}
			return id, host
		}
	}
	return "", ""
}

func (c *fakeCloud) admits(host string, traits []string) bool {
	for _, trait := range traits {
		if !c.provided[host][trait] {
			return false
		}
	}
	for _, a := range c.aggregates {
		for key := range a.Metadata {
			if slices.Contains(a.Hosts, host) && !slices.Contains(traits, strings.TrimPrefix(key, "trait:")) {
				return false
			}
		}
	}
	return true
}

// left lists what is there, without the pool.
func (c *fakeCloud) left() (left []string) {
	for name := range c.aggregates {
		if name != leases.PoolAggregate {
			left = append(left, name)
		}
	}
	for trait := range c.traits {
		if !strings.HasPrefix(trait, "CUSTOM_CLOUDFN_POOL_") {
			left = append(left, trait)
		}
	}
	for host, traits := range c.provided {
		for trait := range traits {
			if !strings.HasPrefix(trait, "CUSTOM_CLOUDFN_POOL_") {
				left = append(left, host+" has "+trait)
			}
		}
	}
	return slices.AppendSeq(slices.AppendSeq(left, maps.Keys(c.flavors)), maps.Keys(c.servers))
}

func (c *fakeCloud) Aggregates(context.Context) (all []domain.Aggregate, err error) {
	defer c.called("Aggregates")
	if err := c.failure("Aggregates"); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.aggregates)) {
		found, _ := c.aggregate(name)
		all = append(all, found)
	}
	return all, nil
}

func (c *fakeCloud) FindAggregate(_ context.Context, name string) (domain.Aggregate, bool, error) {
	defer c.called("FindAggregate " + name)
	if err := c.failure("FindAggregate"); err != nil {
		return domain.Aggregate{}, false, err
	}
	found, ok := c.aggregate(name)
	return found, ok, nil
}

func (c *fakeCloud) aggregate(name string) (found domain.Aggregate, ok bool) {
	a, ok := c.aggregates[name]
	if !ok {
		return found, false
	}
	found = *a
	found.Hosts, found.Metadata = slices.Clone(a.Hosts), maps.Clone(a.Metadata)
	return found, true
}

func (c *fakeCloud) EnsureAggregate(
	_ context.Context, name string, metadata map[string]string,
) (domain.Aggregate, error) {
	defer c.called("EnsureAggregate " + name)
	if err := c.failure("EnsureAggregate"); err != nil {
		return domain.Aggregate{}, err
	}
	if c.aggregates[name] == nil {
		c.made++
		c.aggregates[name] = &domain.Aggregate{ID: c.made, UUID: name, Name: name, Metadata: map[string]string{}}
	}
	maps.Copy(c.aggregates[name].Metadata, metadata)
	return *c.aggregates[name], nil
}

func (c *fakeCloud) byID(id int) *domain.Aggregate {
	for _, a := range c.aggregates {
		if a.ID == id {
			return a
		}
	}
	return &domain.Aggregate{}
}

func (c *fakeCloud) DeleteAggregate(_ context.Context, id int) error {
	defer c.called("DeleteAggregate")
	if err := c.failure("DeleteAggregate"); err != nil {
		return err
	}
	if a := c.byID(id); len(a.Hosts) > 0 {
		return apperr.New(apperr.Conflict, "aggregate %s has hosts", a.Name)
	}
	maps.DeleteFunc(c.aggregates, func(_ string, a *domain.Aggregate) bool { return a.ID == id })
	return nil
}

func (c *fakeCloud) AddHost(_ context.Context, a domain.Aggregate, host, _ string) error {
	defer c.called("AddHost " + host + " " + a.Name)
	if err := c.failure("AddHost"); err != nil {
		return err
	}
	if found := c.aggregates[a.Name]; !slices.Contains(found.Hosts, host) {
		found.Hosts = append(found.Hosts, host)
	}
	return nil
}

func (c *fakeCloud) RemoveHost(_ context.Context, a domain.Aggregate, host, _ string) error {
	defer c.called("RemoveHost " + host + " " + a.Name)
	if err := c.failure("RemoveHost"); err != nil {
		return err
	}
	found := c.byID(a.ID)
	found.Hosts = slices.DeleteFunc(found.Hosts, func(name string) bool { return name == host })
	return nil
}

func (c *fakeCloud) EnsureTrait(_ context.Context, name string) error {
	defer c.called("EnsureTrait")
	if err := c.failure("EnsureTrait"); err != nil {
		return err
	}
	c.traits[name] = true
	return nil
}

func (c *fakeCloud) DeleteTrait(_ context.Context, name string) error {
	defer c.called("DeleteTrait")
	if err := c.failure("DeleteTrait"); err != nil {
		return err
	}
	for host, traits := range c.provided {
		if traits[name] {
			return apperr.New(apperr.Conflict, "host %s has the trait", host)
		}
	}
	delete(c.traits, name)
	return nil
}

func (c *fakeCloud) SetProviderTrait(_ context.Context, provider, trait string, present bool) error {
	defer c.called(fmt.Sprintf("SetProviderTrait %s %s %t", provider, trait[:20], present))
	if err := c.failure("SetProviderTrait"); err != nil {
		return err
	}
	if delete(c.provided[provider], trait); present {
		c.provided[provider][trait] = true
	}
	return nil
}

func (c *fakeCloud) IsolatedProviders(_ context.Context, aggregate, trait string) (ids []string, err error) {
	defer c.called("IsolatedProviders")
	if err := c.failure("IsolatedProviders"); err != nil {
		return nil, err
	}
	for _, host := range c.aggregates[aggregate].Hosts {
		if c.provided[host][trait] {
			ids = append(ids, host)
		}
	}
	return ids, nil
}

func (c *fakeCloud) PrivateFlavors(context.Context) (all []domain.PrivateFlavor, err error) {
	defer c.called("PrivateFlavors")
	if err := c.failure("PrivateFlavors"); err != nil {
		return nil, err
	}
	for _, f := range c.flavors {
		f := f.PrivateFlavor
		f.ExtraSpecs = maps.Clone(f.ExtraSpecs)
		all = append(all, f)
	}
	return all, nil
}

func (c *fakeCloud) EnsureFlavor(_ context.Context, f domain.PrivateFlavor) error {
	defer c.called("EnsureFlavor")
	if err := c.failure("EnsureFlavor"); err != nil {
		return err
	}
	if c.flavors[f.ID] == nil {
		c.flavors[f.ID] = &fakeFlavor{PrivateFlavor: f}
	}
	maps.Copy(c.flavors[f.ID].ExtraSpecs, f.ExtraSpecs)
	return nil
}

func (c *fakeCloud) GrantFlavor(_ context.Context, id, project string) error {
	defer c.called("GrantFlavor")
	if err := c.failure("GrantFlavor"); err != nil {
		return err
	}
	c.flavors[id].projects = []string{project}
	return nil
}

func (c *fakeCloud) DeleteFlavor(_ context.Context, id string) error {
	defer c.called("DeleteFlavor")
	if err := c.failure("DeleteFlavor"); err != nil {
		return err
	}
	delete(c.flavors, id)
	return nil
}

func (c *fakeCloud) HostServers(_ context.Context, host string) (found []domain.Server, err error) {
	defer c.called("HostServers " + host)
	if err := c.failure("HostServers"); err != nil {
		return nil, err
	}
	return c.find(func(s *domain.Server) bool { return s.Host == host }), nil
}

func (c *fakeCloud) UnplacedServers(_ context.Context, project string) ([]domain.Server, error) {
	defer c.called("UnplacedServers")
	if err := c.failure("UnplacedServers"); err != nil {
		return nil, err
	}
	return c.find(func(s *domain.Server) bool {
		return s.ProjectID == project && slices.Contains([]string{"BUILD", "ERROR", "SHELVED_OFFLOADED"}, s.Status)
	}), nil
}

func (c *fakeCloud) ProbeHost(_ context.Context, host string) (domain.Isolation, error) {
	c.probing.Lock()
	c.probed++
	c.probing.Unlock()
	if host == c.open {
		return domain.Isolation{Result: domain.IsolationUnproven, Detail: host}, nil
	}
	return domain.Isolation{Result: domain.IsolationProven, Detail: host}, nil
}

func (c *fakeCloud) TaggedServers(_ context.Context, _, tag string) ([]domain.Server, error) {
	defer c.called("TaggedServers")
	if err := c.failure("TaggedServers"); err != nil {
		return nil, err
	}
	return c.find(func(s *domain.Server) bool { return slices.Contains(s.Tags, tag) }), nil
}

func (c *fakeCloud) Actions(context.Context, string) ([]domain.LoggedAction, error) { return nil, nil }

// change is a call to Nova for a server in one of the states that allow it. Nova does it immediately.
func (c *fakeCloud) change(name, id string, do func(*domain.Server), in ...string) error {
	defer c.called(name)
	s := c.servers[id]
	if s == nil {
		return apperr.New(apperr.NotFound, "no server %s", id)
	}
	if len(in) > 0 && !slices.Contains(in, s.Status) {
		return apperr.New(apperr.Conflict, "Nova cannot %s it while it is %s", name, s.Status)
	}
	do(s)
	return nil
}

func (c *fakeCloud) LockServer(_ context.Context, id string) error {
	return c.change("LockServer", id, func(s *domain.Server) { s.Locked = true; c.locked = append(c.locked, id) })
}

func (c *fakeCloud) UnlockServer(_ context.Context, id string) error {
	return c.change("UnlockServer", id, func(s *domain.Server) { s.Locked = false })
}

func (c *fakeCloud) UnrescueServer(_ context.Context, id string) error {
	return c.change("UnrescueServer", id, func(s *domain.Server) { s.Status = "ACTIVE" }, "RESCUE")
}

// ResetServer is in vain for a broken server.
func (c *fakeCloud) ResetServer(_ context.Context, id string) error {
	if err := c.failure("ResetServer"); err != nil {
		return err
	}
	c.resets++
	err := c.change("ResetServer", id, func(s *domain.Server) {
		if id != c.broken {
			s.Status = "ACTIVE"
		}
	})
	if c.isLost {
		return apperr.New(apperr.Timeout, "nova is not available")
	}
	return err
}

func (c *fakeCloud) StopServer(_ context.Context, id string) error {
	return c.change("StopServer", id, func(s *domain.Server) { s.Status = "SHUTOFF" }, "ACTIVE", "ERROR")
}

func (c *fakeCloud) TagServer(_ context.Context, id, tag string) error {
	return c.change("TagServer", id, func(s *domain.Server) { s.Tags = append(s.Tags, tag) })
}

func (*fakeCloud) RescueServer(context.Context, domain.Server, string) (p domain.Secret, err error) {
	return p, nil
}

func (*fakeCloud) Image(context.Context, string) (i domain.Image, err error) { return i, nil }

func (*fakeCloud) Images(context.Context, string) ([]domain.Image, error) { return nil, nil }

func (*fakeCloud) Flavors(context.Context) ([]domain.Flavor, error) { return nil, nil }

func (c *fakeCloud) ResizeServer(_ context.Context, id, _ string) error {
	return c.change("ResizeServer", id, func(s *domain.Server) {
		s.Host, s.Status, s.Flavor.Name = "ordinary", "VERIFY_RESIZE", "m1.tiny"
	}, "SHUTOFF")
}

func (c *fakeCloud) ConfirmMigration(_ context.Context, id string) error {
	return c.change("ConfirmMigration", id, func(s *domain.Server) { s.Status = "SHUTOFF" }, "VERIFY_RESIZE")
}

func (c *fakeCloud) ShelveServer(_ context.Context, id string) error {
	return c.change("ShelveServer", id, func(s *domain.Server) { s.Host, s.Status = "", "SHELVED_OFFLOADED" },
		"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED")
}

func (c *fakeCloud) find(matches func(*domain.Server) bool) (found []domain.Server) {
	for _, id := range slices.Sorted(maps.Keys(c.servers)) {
		if s := c.servers[id]; matches(s) {
			found = append(found, *s)
		}
	}
	return found
}

func (c *fakeCloud) Server(_ context.Context, id string) (domain.Server, error) {
	defer c.called("Server")
	if err := c.failure("Server"); err != nil {
		return domain.Server{}, err
	}
	if s := c.servers[id]; s != nil {
		return *s, nil
	}
	return domain.Server{}, apperr.New(apperr.NotFound, "no server %s", id)
}

func (c *fakeCloud) DeleteServer(_ context.Context, id string) error {
	defer c.called("DeleteServer")
	if err := c.failure("DeleteServer"); err != nil {
		return err
	}
	delete(c.servers, id)
	return nil
}
