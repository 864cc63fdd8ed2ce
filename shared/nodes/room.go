package nodes

import (
	"cmp"
	"slices"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Whether other hosts have room for a server.
const (
	RoomYes     = "yes"
	RoomNo      = "no"
	RoomUnknown = "unknown" // Nova or Placement does not give the sizes
)

type sizes struct{ vcpus, ramMB, diskGB int }

func (s sizes) fits(free sizes) bool {
	return s.vcpus <= free.vcpus && s.ramMB <= free.ramMB && s.diskGB <= free.diskGB
}

// need is what a server takes of its host. One that boots from a volume takes no disk.
func need(s domain.Server) sizes {
	n := sizes{s.Flavor.VCPUs, s.Flavor.RAMMB, s.Flavor.DiskGB}
	if s.Image == nil {
		n.diskGB = 0
	}
	return n
}

// Room places the servers that a drain would move on the hosts, the largest first and each on the first host that it
// fits, and returns by id whether there is room. Nova's scheduler may choose otherwise, and has other rules besides.
func Room(servers []domain.Server, hosts []domain.ComputeHost) map[string]string {
	room, free, isComplete := map[string]string{}, []sizes{}, true
	for _, h := range hosts {
		if h.ProviderID == "" {
			isComplete = false
			continue
		}
		free = append(free, sizes{h.VCPUs - h.UsedVCPUs, h.RAMMB - h.UsedRAMMB, h.DiskGB - h.UsedDiskGB})
	}
	servers = slices.DeleteFunc(slices.Clone(servers), func(s domain.Server) bool {
		method, _ := Plan(s)
		return method == Skip
	})
	slices.SortFunc(servers, func(a, b domain.Server) int {
		return cmp.Or(need(b).ramMB-need(a).ramMB, need(b).vcpus-need(a).vcpus, cmp.Compare(a.ID, b.ID))
	})
	for _, s := range servers {
		n := need(s)
		at := slices.IndexFunc(free, n.fits)
		switch {
		case n.vcpus == 0:
			room[s.ID] = RoomUnknown
		case at >= 0:
			room[s.ID] = RoomYes
			free[at] = sizes{free[at].vcpus - n.vcpus, free[at].ramMB - n.ramMB, free[at].diskGB - n.diskGB}
		case isComplete:
			room[s.ID] = RoomNo
		default:
			room[s.ID] = RoomUnknown
		}
	}
	return room
}
