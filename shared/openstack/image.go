package openstack

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

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
	Server     string `json:"instance_uuid"` // domain.SnapshotServer

	Updated time.Time `json:"updated_at"`
}

func (i image) domain() domain.Image {
	return domain.Image{
		ID: i.ID, Name: i.Name, Status: i.Status, Visibility: i.Visibility, SizeBytes: i.Size,
		MinDiskGB: i.MinDisk, MinRAMMB: i.MinRAM, DiskFormat: i.DiskFormat,
		ProjectID: i.Owner, UpdatedAt: i.Updated, ServerID: i.Server,
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

// ImagesOf lists the images that an action has made of a server, in every status. They are the server's project's, or
// still the session's own: Glance shows admins the images of all projects, and anybody may put a mark on theirs. An
// image of another server, which was launched from the first one's image, has inherited the mark.
func (s *Session) ImagesOf(ctx context.Context, mark uuid.UUID, server domain.Server) ([]domain.Image, error) {
	found, err := s.images(ctx, url.Values{"limit": {"1000"}, domain.SnapshotMark: {mark.String()}})
	return slices.DeleteFunc(found, func(i domain.Image) bool {
		isOwn := i.ProjectID == server.ProjectID || i.ProjectID == cmp.Or(s.project, s.scope)
		return !isOwn || i.ServerID != "" && i.ServerID != server.ID
	}), err
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
