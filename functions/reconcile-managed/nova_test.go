package reconcilemanaged

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
)

// fakeNova is Nova as far as servers are declared: the real one cannot be stopped between two calls, nor made to fail
// at will. A server is BUILD until settle.
type fakeNova struct {
	managed.Cloud // what it does not have

	mu      sync.Mutex
	now     func() time.Time
	servers []domain.Server
	broken  map[string]bool // flavors whose servers end in ERROR
	creates int
	texts   map[string]string // the user_data of servers, by their ids
	calls   map[string]int    // by name
}

func newFakeNova(now func() time.Time) *fakeNova {
	return &fakeNova{now: now, broken: map[string]bool{}, texts: map[string]string{}, calls: map[string]int{}}
}

// call counts a call, and locks the servers until the returned function is called.
func (f *fakeNova) call(name string) (unlock func()) {
	f.mu.Lock()
	f.calls[name]++
	return f.mu.Unlock
}

func (*fakeNova) CellsUp(context.Context, string) error { return nil }

func (f *fakeNova) Flavors(context.Context) ([]domain.Flavor, error) {
	defer f.call("flavors")()
	return []domain.Flavor{
		{ID: "1", Name: "tiny", VCPUs: 1, RAMMB: 64, DiskGB: 1},
		{ID: "2", Name: "small", VCPUs: 1, RAMMB: 128, DiskGB: 1},
	}, nil
}

func (f *fakeNova) SecurityGroups(context.Context) ([]domain.SecurityGroup, error) {
	return []domain.SecurityGroup{{ID: "g1", Name: "default"}}, nil
}

func (f *fakeNova) Networks(context.Context) ([]domain.Network, error) {
	defer f.call("networks")()
	return []domain.Network{{ID: "n", Name: "private", Subnets: []domain.Subnet{{ID: "s"}}}}, nil
}

func (f *fakeNova) Images(_ context.Context, name string) ([]domain.Image, error) {
	defer f.call("images")()
	return []domain.Image{{ID: "i", Name: name, Status: "active"}}, nil
}

func (*fakeNova) Quota(context.Context) (domain.Quota, error) {
	none := domain.QuotaItem{Max: -1}
	return domain.Quota{Instances: none, VCPUs: none, RAMMB: none}, nil
}

func (*fakeNova) ServerPorts(context.Context, string, string) ([]domain.Port, error) {
	return nil, apperr.New(apperr.Forbidden, "the ports are withheld")
}

func (*fakeNova) DeleteServerGroups(context.Context, string) error { return nil }

func (f *fakeNova) MarkedServers(_ context.Context, tag string) ([]domain.Server, error) {
	defer f.call("list")()
	return f.tagged(tag), nil
}

func (f *fakeNova) Servers(_ context.Context, q domain.ServerQuery) ([]domain.Server, bool, error) {
	defer f.call("list")()
	return f.tagged(q.Tags...), false, nil
}

func (f *fakeNova) tagged(tags ...string) (found []domain.Server) {
	for _, s := range f.servers {
		if !slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(s.Tags, tag) }) {
			s.Flavor.ID, s.Tags = "", slices.Clone(s.Tags)
			found = append(found, s)
		}
	}
	return found
}

func (f *fakeNova) Server(_ context.Context, id string) (domain.Server, error) {
	defer f.call("get")()
	for _, s := range f.servers {
		if s.ID == id {
			return s, nil
		}
	}
	return domain.Server{}, apperr.New(apperr.NotFound, "no server %s", id)
}

func (f *fakeNova) CreateServer(
	_ context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string,
) (string, error) {
	defer f.call("create")()
	f.creates++
	id, now := uuid.NewString(), f.now()
	f.texts[id] = userData.Reveal()
	f.servers = append(f.servers, domain.Server{
		ID: id, Name: name, Status: "BUILD", Tags: tags, ProjectID: "p", UserID: "u", CreatedAt: now, UpdatedAt: now,
		Image: &domain.ImageRef{ID: spec.ImageID}, Metadata: spec.Metadata,
		Flavor: domain.FlavorRef{Name: map[string]string{"1": "tiny", "2": "small"}[spec.FlavorID]},
	})
	return id, nil
}

func (f *fakeNova) DeleteServer(_ context.Context, id string) error {
	defer f.call("delete")()
	for n := range f.servers {
		if f.servers[n].ID == id {
			f.servers[n].Task = "deleting"
		}
	}
	return nil
}

// settle ends what Nova has begun.
func (f *fakeNova) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers = slices.DeleteFunc(f.servers, func(s domain.Server) bool { return s.Task == "deleting" })
	for n := range f.servers {
		s := &f.servers[n]
		if s.Status != "BUILD" {
			continue
		}
		if s.Status = "ACTIVE"; f.broken[s.Flavor.Name] {
			s.Status, s.Fault = "ERROR", &domain.Fault{Code: 500, Message: "No valid host was found."}
		}
	}
}

// active are the names of the servers that are ACTIVE, each with its flavor, and those of others with their status.
func (f *fakeNova) active() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, s := range f.servers {
		text := s.Name + ":" + s.Flavor.Name
		if s.Status != "ACTIVE" || s.Task != "" {
			text += fmt.Sprintf("(%s %s)", s.Status, s.Task)
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
