package managed

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ImageCloud is the part of OpenStack that images need.
type ImageCloud interface {
	TaggedImages(ctx context.Context, projectID, tag string) ([]domain.ImageDetail, error)
	ImageDetail(ctx context.Context, id string) (domain.ImageDetail, error)
	CreateImage(ctx context.Context, r domain.ImageRequest) (id string, err error)
	UploadImage(ctx context.Context, id string, content io.Reader) error
	ImportImage(ctx context.Context, id, source string) error
	ChangeImage(ctx context.Context, id string, c domain.ImageChange) error
	DeleteImage(ctx context.Context, id string) error
}

// ImageDriver makes images of Glance. Their mark is a tag: properties are inherited by the snapshots of servers that
// are made from the image.
type ImageDriver struct{}

// Kinds implements Driver.
func (ImageDriver) Kinds() []domain.Kind { return []domain.Kind{domain.KindImage} }

// Needs implements Driver.
func (ImageDriver) Needs(json.RawMessage) []Ref { return nil }

// List implements Driver.
func (ImageDriver) List(
	ctx context.Context, s Session, members []domain.Member,
) (map[uuid.UUID]Object, error) {
	all, err := s.Cloud.TaggedImages(ctx, s.ProjectID, markTag)
	if err != nil {
		return nil, err
	}
	found := map[uuid.UUID][]Object{}
	for _, i := range all {
		if member, ok := taggedMember(i.Tags); ok {
			found[member] = append(found[member], imageObject(i))
		}
	}
	return byMark(found, members), nil
}

// Find implements Driver. An image that belongs to another project by now is no object of this one.
func (ImageDriver) Find(ctx context.Context, s Session, id string) (Object, error) {
	i, err := s.Cloud.ImageDetail(ctx, id)
	if err == nil && i.OwnerID != s.ProjectID {
		err = apperr.New(apperr.NotFound, "image %s belongs to another project", id)
	}
	return imageObject(i), err
}

// uploadFor bounds an upload. Content that is declared is small, so a longer one has lost its Glance.
const uploadFor = 10 * time.Minute

// importFor bounds an import. Glance itself takes the task of one for dead when it has not reported for so long.
const importFor = time.Hour

func imageObject(i domain.ImageDetail) Object {
	o := Object{
		ID: i.ID, Name: i.Name, State: ObjectWorking, CreatedAt: i.CreatedAt, Raw: i,
		Phase: "Glance's status of the image is " + i.Status, ChangedAt: i.UpdatedAt, Keep: true,
	}
	unchanged := time.Since(i.UpdatedAt)
	switch i.Status {
	case "active":
		o.State = ObjectReady
	case "deleted", "pending_delete":
		o.State = ObjectDeleting
	case "killed":
		o.State, o.Reason = ObjectError, "Glance could not store the image's content"
	case "deactivated":
		o.State, o.Reason = ObjectError, "an administrator has deactivated the image"
	case "queued":
		switch {
		case i.FailedImport:
			o.State, o.Reason = ObjectError, "Glance could not import the image's content"
		case !i.IsImporting:
			o.State = ObjectIncomplete
		}
	case "saving":
		if !i.IsImporting && unchanged > uploadFor {
			o.State, o.Reason = ObjectError, "the upload of the image's content was interrupted"
		}
	}
	if o.State == ObjectWorking && unchanged >= importFor {
		o.State = ObjectError
		o.Reason = "Glance has not imported the image's content since " + i.UpdatedAt.UTC().Format(time.RFC3339)
	}
	return o
}

// Create implements Driver.
func (ImageDriver) Create(ctx context.Context, s Session, in Desired) (string, error) {
	spec := read[domain.ImageSpec](in.Spec)
	made, err := madeImages(ctx, s, in.Member)
	if err != nil {
		return "", unsent(err)
	}
	for _, i := range made {
		state := imageObject(i).State
		if state != ObjectDeleting {
			in.found()
		}
		switch state {
		case ObjectDeleting:
		case ObjectIncomplete:
			return i.ID, fillImage(ctx, s, i.ID, spec)
		default:
			return i.ID, nil
		}
	}
	id, err := s.Cloud.CreateImage(ctx, domain.ImageRequest{
		Name: in.Name, DiskFormat: spec.DiskFormat, ContainerFormat: containerFormat(spec), MinDiskGB: spec.MinDiskGB,
		MinRAMMB: spec.MinRAMMB, Properties: spec.Properties, Tags: append(memberTags(in.Member.ID), ownTags(spec)...),
	})
	if err != nil {
		return sent("", err)
	}
	return id, fillImage(ctx, s, id, spec)
}

// madeImages are the images that were made for a member. One whose id is stored is incomplete.
func madeImages(ctx context.Context, s Session, member domain.Member) ([]domain.ImageDetail, error) {
	if member.ObjectID == "" {
		return s.Cloud.TaggedImages(ctx, s.ProjectID, memberTag(member.ID))
	}
	i, err := s.Cloud.ImageDetail(ctx, member.ObjectID)
	return []domain.ImageDetail{i}, err
}

// ownTags are the tags of a declaration that cannot be taken for marks.
func ownTags(spec domain.ImageSpec) []string {
	return slices.DeleteFunc(slices.Clone(spec.Tags), func(tag string) bool {
		return strings.HasPrefix(tag, "cloudfn:")
	})
}

func containerFormat(spec domain.ImageSpec) string { return cmp.Or(spec.ContainerFormat, "bare") }

// fillImage gives an image its content, or has Glance fetch it.
func fillImage(ctx context.Context, s Session, id string, spec domain.ImageSpec) error {
	if spec.SourceURL != "" {
		return s.Cloud.ImportImage(ctx, id, spec.SourceURL)
	}
	content, err := base64.StdEncoding.DecodeString(spec.Content)
	if err != nil {
		return apperr.InvalidField("spec.content", "must be base64")
	}
	return s.Cloud.UploadImage(ctx, id, bytes.NewReader(content))
}

// Differences implements Driver.
func (ImageDriver) Differences(in Desired, o Object) []Difference {
	i, spec, made := raw[domain.ImageDetail](o), read[domain.ImageSpec](in.Spec), read[domain.ImageSpec](in.Made.Spec)
	out := slices.Concat(
		compare("name", in.Name, i.Name, InPlace),
		compare("min_disk_gb", spec.MinDiskGB, i.MinDiskGB, InPlace),
		compare("min_ram_mb", spec.MinRAMMB, i.MinRAMMB, InPlace),
		missing("tags", set(memberTags(in.Member.ID)), set(i.Tags)),
		entries("tags", set(ownTags(spec)), had(in, func(s domain.ImageSpec) map[string]string {
			return set(ownTags(s))
		}), set(i.Tags)),
		entries("properties", spec.Properties, had(in, func(s domain.ImageSpec) map[string]string {
			return s.Properties
		}), i.Properties),
		compare("disk_format", spec.DiskFormat, i.DiskFormat, Replace),
		compare("container_format", containerFormat(spec), i.ContainerFormat, Replace),
	)
	if in.Made.Number != 0 {
		out = append(out, compare("source_url", spec.SourceURL, made.SourceURL, Replace)...)
	}
	if sum := contentSum(spec); sum != "" && i.SHA512 != "" && sum != i.SHA512 {
		out = append(out, Difference{
			Field: "content", Declared: "sha512:" + sum, Actual: "sha512:" + i.SHA512, Way: Replace,
		})
	}
	return out
}

// contentSum is the SHA-512 of the content that is declared; "" = Glance fetches it.
func contentSum(spec domain.ImageSpec) string {
	content, err := base64.StdEncoding.DecodeString(spec.Content)
	if err != nil || spec.SourceURL != "" {
		return ""
	}
	sum := sha512.Sum512(content)
	return hex.EncodeToString(sum[:])
}

// set is a list as a map, each of whose entries has its own name as value.
func set(list []string) map[string]string {
	out := make(map[string]string, len(list))
	for _, one := range list {
		out[one] = one
	}
	return out
}

// Update implements Driver.
func (ImageDriver) Update(ctx context.Context, s Session, in Desired, o Object, differences []Difference) error {
	i, spec, change := raw[domain.ImageDetail](o), read[domain.ImageSpec](in.Spec), domain.ImageChange{}
	if differs(differences, "name") {
		change.Name = &in.Name
	}
	if differs(differences, "min_disk_gb") {
		change.MinDiskGB = &spec.MinDiskGB
	}
	if differs(differences, "min_ram_mb") {
		change.MinRAMMB = &spec.MinRAMMB
	}
	if add, remove := changes("tags", differences); len(add)+len(remove) > 0 {
		change.Tags = slices.DeleteFunc(slices.Clone(i.Tags), func(tag string) bool {
			return slices.Contains(remove, tag)
		})
		for tag := range add {
			change.Tags = append(change.Tags, tag)
		}
	}
	change.Set, change.Remove = changes("properties", differences)
	return s.Cloud.ChangeImage(ctx, o.ID, change)
}

// Delete implements Driver. It waits while the image is used or protected.
func (ImageDriver) Delete(ctx context.Context, s Session, o Object) error {
	return waitsOn(s.Cloud.DeleteImage(ctx, o.ID), "InUse", apperr.Conflict, apperr.Forbidden)
}
