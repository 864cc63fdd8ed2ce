package openstack

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/imagedata"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/imageimport"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"

	"github.com/cloudfn/cloudfn/shared/domain"
)

type image struct {
	ID         string `json:"id"`
	Name       string `json:"name"` // null for an image without a name
	Status     string `json:"status"`
	Visibility string `json:"visibility"`
	Size       int64  `json:"size"`         // null until it is uploaded
	Virtual    int64  `json:"virtual_size"` // null where Glance does not read the format
	MinDisk    int    `json:"min_disk"`
	MinRAM     int    `json:"min_ram"`
	DiskFormat string `json:"disk_format"`
	Owner      string `json:"owner"`
	Server     string `json:"instance_uuid"` // domain.SnapshotServer
	AdminUser  string `json:"os_admin_user"`
	Distro     string `json:"os_distro"`

	Updated time.Time `json:"updated_at"`
}

func (i image) domain() domain.Image {
	return domain.Image{
		ID: i.ID, Name: i.Name, Status: i.Status, Visibility: i.Visibility, SizeBytes: i.Size, VirtualBytes: i.Virtual,
		MinDiskGB: i.MinDisk, MinRAMMB: i.MinRAM, DiskFormat: i.DiskFormat,
		ProjectID: i.Owner, UpdatedAt: i.Updated, ServerID: i.Server,
		LoginUser: domain.LoginUser(i.AdminUser, i.Distro),
	}
}

// Images lists every image that Glance shows the project, page by page: its own, the public ones and those
// shared with it; not the community ones, which Glance lists only on request. name "" means all; Glance's database
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
// still the session's own: Glance shows admins the images of all projects, and any user may put a mark on theirs. An
// image of another server, which was launched from the first one's image, has inherited the mark.
func (s *Session) ImagesOf(ctx context.Context, mark uuid.UUID, server domain.Server) ([]domain.Image, error) {
	found, err := s.images(ctx, url.Values{"limit": {"1000"}, domain.SnapshotMark: {mark.String()}})
	return slices.DeleteFunc(found, func(i domain.Image) bool {
		isOwn := i.ProjectID == server.ProjectID || i.ProjectID == s.ownProject()
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

// imageDetail is an image with its properties, which stand beside Glance's own fields.
type imageDetail struct {
	image

	Owner           string    `json:"owner"`
	ContainerFormat string    `json:"container_format"`
	Tags            []string  `json:"tags"`
	HashAlgorithm   string    `json:"os_hash_algo"`
	Hash            string    `json:"os_hash_value"`
	ImportTask      string    `json:"os_glance_import_task"` // while it runs
	Failed          string    `json:"os_glance_failed_import"`
	Created         time.Time `json:"created_at"`

	properties map[string]string
}

// UnmarshalJSON takes every other text for a property, such as Glance's own owner.
func (i *imageDetail) UnmarshalJSON(data []byte) error {
	type plain imageDetail
	if err := json.Unmarshal(data, (*plain)(i)); err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	i.properties = map[string]string{}
	for name, raw := range all {
		var text *string
		if json.Unmarshal(raw, &text) == nil && text != nil {
			i.properties[name] = *text
		}
	}
	return nil
}

func (i *imageDetail) domain() domain.ImageDetail {
	out := domain.ImageDetail{
		Image: i.image.domain(), OwnerID: i.Owner, ContainerFormat: i.ContainerFormat, Tags: i.Tags,
		Properties: i.properties, IsImporting: i.ImportTask != "", FailedImport: i.Failed != "", CreatedAt: i.Created,
		UpdatedAt: i.Updated,
	}
	if i.HashAlgorithm == "sha512" {
		out.SHA512 = i.Hash
	}
	return out
}

func (s *Session) glance(ctx context.Context) (*gophercloud.ServiceClient, error) {
	return s.client(ctx, "image", "v2/", "")
}

// TaggedImages lists the project's own images with the tag; "" = all of them. A snapshot of a server does not inherit
// the tags of the server's image, as it does its properties.
func (s *Session) TaggedImages(ctx context.Context, projectID, tag string) ([]domain.ImageDetail, error) {
	glance, err := s.glance(ctx)
	if err != nil {
		return nil, err
	}
	type page struct {
		Images []imageDetail `json:"images"`
		Next   string        `json:"next"`
	}
	query := url.Values{"limit": {"1000"}, "owner": {projectID}}
	if tag != "" {
		query.Set("tag", tag)
	}
	found, err := everyPage(ctx, glance, glance.ServiceURL("images"), query,
		func(p *page) ([]imageDetail, string) { return p.Images, p.Next },
		func(i imageDetail) string { return i.ID })
	return convert(found, err, func(i imageDetail) domain.ImageDetail { return i.domain() })
}

// ImageDetail reads one image with its tags and properties.
func (s *Session) ImageDetail(ctx context.Context, id string) (domain.ImageDetail, error) {
	glance, err := s.glance(ctx)
	if err != nil {
		return domain.ImageDetail{}, err
	}
	var found imageDetail
	err = get(ctx, glance, glance.ServiceURL("images", url.PathEscape(id)), &found)
	return found.domain(), err
}

// CreateImage makes an image without content.
func (s *Session) CreateImage(ctx context.Context, r domain.ImageRequest) (id string, err error) {
	glance, err := s.glance(ctx)
	if err != nil {
		return "", err
	}
	made, err := images.Create(ctx, glance, images.CreateOpts{
		Name: r.Name, DiskFormat: r.DiskFormat, ContainerFormat: r.ContainerFormat, MinDisk: r.MinDiskGB,
		MinRAM: r.MinRAMMB, Tags: r.Tags, Properties: r.Properties,
	}).Extract()
	if err != nil {
		return "", classify("glance", err)
	}
	return made.ID, nil
}

// UploadImage gives an image its content. It is a Conflict when the image has one.
func (s *Session) UploadImage(ctx context.Context, id string, content io.Reader) error {
	glance, err := s.glance(ctx)
	if err != nil {
		return err
	}
	return classify("glance", imagedata.Upload(ctx, glance, id, content).ExtractErr())
}

// ImportImage has Glance download the content of an image.
func (s *Session) ImportImage(ctx context.Context, id, source string) error {
	glance, err := s.glance(ctx)
	if err != nil {
		return err
	}
	return classify("glance", imageimport.Create(ctx, glance, id, imageimport.CreateOpts{
		Name: imageimport.WebDownloadMethod, URI: source,
	}).ExtractErr())
}

// GiveImage makes an image another project's. By default only the cloud's admins may.
func (s *Session) GiveImage(ctx context.Context, id, projectID string) error {
	glance, err := s.glance(ctx)
	if err != nil {
		return err
	}
	owner := images.UpdateOpts{patch{Operation: "replace", Path: "/owner", Value: projectID}}
	return classify("glance", images.Update(ctx, glance, id, owner).Err)
}

// patch is one operation on an image.
type patch struct {
	Operation string
	Path      string
	Value     any
}

// ToImagePatchMap is what gophercloud sends.
func (p patch) ToImagePatchMap() map[string]any {
	out := map[string]any{"op": p.Operation, "path": p.Path}
	if p.Operation != "remove" {
		out["value"] = p.Value
	}
	return out
}

// pointer is a path of one name in the form of JSON Pointer.
func pointer(name string) string {
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// ChangeImage changes the fields, tags and properties of an image.
func (s *Session) ChangeImage(ctx context.Context, id string, c domain.ImageChange) error {
	glance, err := s.glance(ctx)
	if err != nil {
		return err
	}
	var all images.UpdateOpts
	if c.Name != nil {
		all = append(all, patch{"replace", "/name", *c.Name})
	}
	if c.MinDiskGB != nil {
		all = append(all, patch{"replace", "/min_disk", *c.MinDiskGB})
	}
	if c.MinRAMMB != nil {
		all = append(all, patch{"replace", "/min_ram", *c.MinRAMMB})
	}
	if c.Tags != nil {
		all = append(all, patch{"replace", "/tags", c.Tags})
	}
	for name, value := range c.Set {
		all = append(all, patch{"add", pointer(name), value}) // it replaces, too
	}
	for _, name := range slices.Sorted(slices.Values(c.Remove)) {
		all = append(all, patch{"remove", pointer(name), nil})
	}
	if len(all) == 0 {
		return nil
	}
	return classify("glance", images.Update(ctx, glance, id, all).Err)
}

// DeleteImage deletes an image. It is Forbidden while the image is protected, and a Conflict while it is used.
func (s *Session) DeleteImage(ctx context.Context, id string) error {
	glance, err := s.glance(ctx)
	if err != nil {
		return err
	}
	return absentIsDone(classify("glance", images.Delete(ctx, glance, id).ExtractErr()))
}
