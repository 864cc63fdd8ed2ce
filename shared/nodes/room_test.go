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
			ID: id, Status: status, Image: &domain.ImageRef{ID: "i"}, Flavor: domain.FlavorRef{VCPUs: 1, RAMMB: ram, DiskGB: 10},
		}
	}
	host := func(id string, ram, disk int) domain.ComputeHost {
		return domain.ComputeHost{
			ProviderID: id, VCPUs: 8, UsedVCPUs: 4, RAMMB: ram + 512, UsedRAMMB: 512, DiskGB: disk, UsedDiskGB: 0,
		}
	}
	small, large, stays := server("small", "ACTIVE", 1024), server("large", "SHUTOFF", 4096), server("stays", "ERROR", 1)
	volume := server("volume", "ACTIVE", 1024)
	volume.Image = nil
	unsized := domain.Server{ID: "unsized", Status: "ACTIVE"}
	for name, tc := range map[string]struct {
		servers []domain.Server
		hosts   []domain.ComputeHost
		want    map[string]string
	}{
		"both fit":         {[]domain.Server{small, large, stays}, []domain.ComputeHost{host("a", 5120, 20)}, map[string]string{"small": "yes", "large": "yes"}},
		"on two hosts":     {[]domain.Server{small, large}, []domain.ComputeHost{host("a", 1024, 20), host("b", 4096, 20)}, map[string]string{"small": "yes", "large": "yes"}},
		"the small does":   {[]domain.Server{small, large}, []domain.ComputeHost{host("a", 4000, 20)}, map[string]string{"small": "yes", "large": "no"}},
		"the second not":   {[]domain.Server{small, large}, []domain.ComputeHost{host("a", 4096, 20)}, map[string]string{"small": "no", "large": "yes"}},
		"no disk":          {[]domain.Server{small, volume}, []domain.ComputeHost{host("a", 4096, 9)}, map[string]string{"small": "no", "volume": "yes"}},
		"no other host":    {[]domain.Server{small}, nil, map[string]string{"small": "no"}},
		"an unknown host":  {[]domain.Server{small}, []domain.ComputeHost{{}}, map[string]string{"small": "unknown"}},
		"an unknown size":  {[]domain.Server{unsized}, []domain.ComputeHost{host("a", 4096, 9)}, map[string]string{"unsized": "unknown"}},
		"nothing to place": {[]domain.Server{stays}, nil, map[string]string{}},
	} {
		if got := Room(tc.servers, tc.hosts); !maps.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
