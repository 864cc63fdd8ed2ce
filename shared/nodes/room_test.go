package nodes

import (
	"maps"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestRoom places the largest servers first, and each in what the ones before have left.
func TestRoom(t *testing.T) {
	t.Parallel()
	server := func(id, status string, ram int) domain.Server {
		return domain.Server{
			ID: id, Status: status, Image: &domain.ImageRef{ID: "i"},
			Flavor: domain.FlavorRef{VCPUs: 1, RAMMB: ram, DiskGB: 10},
		}
	}
	host := func(id string, ram, disk int) domain.ComputeHost {
		return domain.ComputeHost{
			ProviderID: id, VCPUs: 8, UsedVCPUs: 4, RAMMB: ram + 512, UsedRAMMB: 512, DiskGB: disk, UsedDiskGB: 0,
		}
	}
	small, large := server("small", "ACTIVE", 1024), server("large", "SHUTOFF", 4096)
	stays := server("stays", "ERROR", 1)
	volume := server("volume", "ACTIVE", 1024)
	volume.Image = nil
	unsized := domain.Server{ID: "unsized", Status: "ACTIVE"}
	type (
		servers = []domain.Server
		hosts   = []domain.ComputeHost
		words   = map[string]string
	)
	for name, tc := range map[string]struct {
		servers servers
		hosts   hosts
		want    words
	}{
		"both fit": {servers{small, large, stays}, hosts{host("a", 5120, 20)}, words{"small": "yes", "large": "yes"}},
		"on two hosts": {
			servers{small, large},
			hosts{host("a", 1024, 20), host("b", 4096, 20)},
			words{"small": "yes", "large": "yes"},
		},
		"the small does":   {servers{small, large}, hosts{host("a", 4000, 20)}, words{"small": "yes", "large": "no"}},
		"the second not":   {servers{small, large}, hosts{host("a", 4096, 20)}, words{"small": "no", "large": "yes"}},
		"no disk":          {servers{small, volume}, hosts{host("a", 4096, 9)}, words{"small": "no", "volume": "yes"}},
		"no other host":    {servers{small}, nil, words{"small": "no"}},
		"an unknown host":  {servers{small}, hosts{{}}, words{"small": "unknown"}},
		"an unknown size":  {servers{unsized}, hosts{host("a", 4096, 9)}, words{"unsized": "unknown"}},
		"nothing to place": {servers{stays}, nil, words{}},
	} {
		if got := Room(tc.servers, tc.hosts); !maps.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
