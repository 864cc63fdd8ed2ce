package openstack

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

type image struct {
	ID         string `json:"id"`
	Name       string `json:"name"` // null for an image without a name
	Status     string `json:"status"`
	Visibility string `json:"visibility"`
	Size       int64  `json:"size"` // null until it is uploaded
	MinDisk    int    `json:"min_disk"`
	MinRAM     int    `json:"min_ram"`
	DiskFormat string `json:"disk_format"`
	Owner      string `json:"owner"`
}

func (i image) domain() domain.Image {
	return domain.Image{
		ID: i.ID, Name: i.Name, Status: i.Status, Visibility: i.Visibility, SizeBytes: i.Size,
		MinDiskGB: i.MinDisk, MinRAMMB: i.MinRAM, DiskFormat: i.DiskFormat,
		ProjectID: i.Owner,
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
	if name != "" && !strings.Contains(name, "\uFFFD") { // which may stand for a NUL of the name
		query.Set("name", "eq:"+name) // else Glance takes what precedes the first colon for an operator
	}
	return s.images(ctx, query)
}

// FindImages lists the images of exactly this name, in every status: one that is made at the moment is queued or
// saving.
func (s *Session) FindImages(ctx context.Context, name string) ([]domain.Image, error) {
	found, err := s.Images(ctx, name)
	return slices.DeleteFunc(found, func(i domain.Image) bool { return i.Name != name }), err
}

// ImagesOf lists the images that an action has made of a server, in every status.
func (s *Session) ImagesOf(ctx context.Context, action uuid.UUID) ([]domain.Image, error) {
	return s.images(ctx, url.Values{"limit": {"1000"}, domain.SnapshotMark: {action.String()}})
}

func (s *Session) images(ctx context.Context, query url.Values) ([]domain.Image, error) {
	glance, err := s.glance(ctx)
	if err != nil {
		return nil, err
	}
	type page struct {
		Images []image `json:"images"`
		Next   string  `json:"next"`
	}
	found, err := everyPage(ctx, glance, glance.ServiceURL("images"), query,
		func(p *page) ([]image, string) { return p.Images, p.Next },
		func(i image) string { return i.ID })
	return convert(found, err, image.domain)
}

// Image reads one image, also a community one.
func (s *Session) Image(ctx context.Context, id string) (domain.Image, error) {
	glance, err := s.glance(ctx)
	if err != nil {
		return domain.Image{}, err
	}
	var found image
	err = get(ctx, glance, glance.ServiceURL("images", url.PathEscape(id)), &found)
	return found.domain(), err
}
