package openstack

import (
	"context"
	"net/url"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/availabilityzones"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/limits"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Flavors lists every flavor that the project may use: the public ones and those it has access to.
func (s *Session) Flavors(ctx context.Context) ([]domain.Flavor, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return nil, err
	}
	pages, err := flavors.ListDetail(nova, flavors.ListOpts{}).AllPages(ctx)
	if err != nil {
		return nil, classify("nova", err)
	}
	found, err := flavors.ExtractFlavors(pages)
	if err != nil {
		return nil, classify("nova", err)
	}
	out := make([]domain.Flavor, len(found))
	for i, f := range found {
		out[i] = domain.Flavor{ID: f.ID, Name: f.Name, VCPUs: f.VCPUs, RAMMB: f.RAM, DiskGB: f.Disk, Public: f.IsPublic}
	}
	return out, nil
}

// KeyPairs lists the caller's SSH keys.
func (s *Session) KeyPairs(ctx context.Context) ([]domain.KeyPair, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return nil, err
	}
	pages, err := keypairs.List(nova, keypairs.ListOpts{}).AllPages(ctx)
	if err != nil {
		return nil, classify("nova", err)
	}
	found, err := keypairs.ExtractKeyPairs(pages)
	if err != nil {
		return nil, classify("nova", err)
	}
	out := make([]domain.KeyPair, len(found))
	for i, k := range found {
		out[i] = domain.KeyPair{Name: k.Name, Fingerprint: k.Fingerprint, Type: "ssh"} // x509 can only be told from 2.2 on
	}
	return out, nil
}

// Zones lists the availability zones of compute.
func (s *Session) Zones(ctx context.Context) ([]domain.Zone, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return nil, err
	}
	pages, err := availabilityzones.List(nova).AllPages(ctx)
	if err != nil {
		return nil, classify("nova", err)
	}
	found, err := availabilityzones.ExtractAvailabilityZones(pages)
	if err != nil {
		return nil, classify("nova", err)
	}
	out := make([]domain.Zone, len(found))
	for i, z := range found {
		out[i] = domain.Zone{Name: z.ZoneName, Available: z.ZoneState.Available}
	}
	return out, nil
}

// Quota is what the project may use of compute, and uses.
func (s *Session) Quota(ctx context.Context) (domain.Quota, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return domain.Quota{}, err
	}
	found, err := limits.Get(ctx, nova, nil).Extract()
	if err != nil {
		return domain.Quota{}, classify("nova", err)
	}
	a := found.Absolute
	return domain.Quota{
		Instances: domain.QuotaItem{Max: a.MaxTotalInstances, Used: a.TotalInstancesUsed},
		VCPUs:     domain.QuotaItem{Max: a.MaxTotalCores, Used: a.TotalCoresUsed},
		RAMMB:     domain.QuotaItem{Max: a.MaxTotalRAMSize, Used: a.TotalRAMUsed},
		KeyPairs:  a.MaxTotalKeypairs,
	}, nil
}

type image struct {
	ID         string `json:"id"`
	Name       string `json:"name"` // null for an image without a name
	Status     string `json:"status"`
	Visibility string `json:"visibility"`
	Size       int64  `json:"size"` // null until it is uploaded
	MinDisk    int    `json:"min_disk"`
	MinRAM     int    `json:"min_ram"`
	DiskFormat string `json:"disk_format"`
}

func (i image) domain() domain.Image {
	return domain.Image{
		ID: i.ID, Name: i.Name, Status: i.Status, Visibility: i.Visibility, SizeBytes: i.Size,
		MinDiskGB: i.MinDisk, MinRAMMB: i.MinRAM, DiskFormat: i.DiskFormat,
	}
}

// Images lists every image that Glance shows the project, page by page: its own, the public ones and those
// shared with it; not the community ones, which Glance lists only when asked for. name "" means all; Glance's database
// may take names that differ in case for equal.
//
// gophercloud is not used for images: it follows Glance's `next` as it is written there, and decodes every
// property of every image twice.
func (s *Session) Images(ctx context.Context, name string) ([]domain.Image, error) {
	query := url.Values{"limit": {"1000"}}
	if name != "" {
		query.Set("name", name)
	}
	return s.images(ctx, query)
}

// CommunityImages lists the community images.
func (s *Session) CommunityImages(ctx context.Context) ([]domain.Image, error) {
	return s.images(ctx, url.Values{"limit": {"1000"}, "visibility": {"community"}})
}

func (s *Session) images(ctx context.Context, query url.Values) ([]domain.Image, error) {
	glance, err := s.client(ctx, "image", "v2/", "")
	if err != nil {
		return nil, err
	}
	var out []domain.Image
	seen := map[string]bool{} // an image uploaded meanwhile shifts the pages
	for {
		var page struct {
			Images []image `json:"images"`
			Next   string  `json:"next"`
		}
		if _, err := glance.Get(ctx, glance.ServiceURL("images")+"?"+query.Encode(), &page, nil); err != nil {
			return nil, classify("glance", err)
		}
		for _, i := range page.Images {
			if !seen[i.ID] {
				seen[i.ID] = true
				out = append(out, i.domain())
			}
		}
		// `next` may lack the path that a proxy puts before Glance, so only its marker is taken.
		marker := nextMarker([]link{{Rel: "next", Href: page.Next}})
		if marker == "" || marker == query.Get("marker") || len(page.Images) == 0 {
			return out, nil
		}
		query.Set("marker", marker)
	}
}

// Image reads one image, also a community one.
func (s *Session) Image(ctx context.Context, id string) (domain.Image, error) {
	glance, err := s.client(ctx, "image", "v2/", "")
	if err != nil {
		return domain.Image{}, err
	}
	var found image
	_, err = glance.Get(ctx, glance.ServiceURL("images", url.PathEscape(id)), &found, &gophercloud.RequestOpts{})
	return found.domain(), classify("glance", err)
}
