package managed

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// What follows is the model of Cinder.

func modelVolume(o *modelObject) domain.Volume {
	v := o.volume
	v.Metadata, v.Servers = maps.Clone(v.Metadata), slices.Clone(v.Servers)
	return v
}

// is gives the volume a status, now.
func (o *modelObject) isVolume(status string) {
	o.volume.Status, o.volume.UpdatedAt = status, time.Now()
	o.hasData = o.hasData || status == "available" || status == "in-use"
}

func (v modelView) Volumes(ctx context.Context, key, value string) ([]domain.Volume, error) {
	return modelList(ctx, v, "Volumes", key, func() (all []domain.Volume, err error) {
		for _, o := range v.c.of(domain.KindVolume) {
			if key == "" || o.volume.Metadata[key] == value {
				all = append(all, modelVolume(o))
			}
		}
		return all, nil
	})
}

func (v modelView) Volume(ctx context.Context, id string) (domain.Volume, error) {
	return modelRead(ctx, v, "Volume", domain.KindVolume, id, modelVolume)
}

func (v modelView) CreateVolume(ctx context.Context, r domain.VolumeRequest) (id string, err error) {
	id = v.run.newID("volume " + r.Name)
	return id, v.write(ctx, "CreateVolume", r.Name, func(breaks bool) error {
		member, _ := uuid.Parse(r.Metadata[markKey])
		now := time.Now()
		o := v.c.add(&modelObject{
			kind: domain.KindVolume, id: id, label: r.Name, member: member, volume: domain.Volume{
				ID: id, Name: r.Name, Description: r.Description, Status: "creating", SizeGB: r.SizeGB,
				Metadata: maps.Clone(r.Metadata), CreatedAt: now, UpdatedAt: now,
			},
		})
		o.after(3*time.Second, func() {
			if breaks {
				o.isVolume("error")
				return
			}
			o.isVolume("available")
		})
		return nil
	})
}

func (v modelView) DescribeVolume(ctx context.Context, id, name, description string) error {
	return v.change(ctx, "DescribeVolume", domain.KindVolume, id, func(o *modelObject, _ bool) error {
		o.volume.Name, o.volume.Description = name, description
		return nil
	})
}

func (v modelView) SetVolumeMetadata(ctx context.Context, id string, set map[string]string, remove []string) error {
	return v.change(ctx, "SetVolumeMetadata", domain.KindVolume, id, func(o *modelObject, _ bool) error {
		maps.Copy(o.volume.Metadata, set)
		maps.DeleteFunc(o.volume.Metadata, func(key, _ string) bool { return slices.Contains(remove, key) })
		return nil
	})
}

func (v modelView) ExtendVolume(ctx context.Context, id string, sizeGB int, isAttached bool) error {
	return v.change(ctx, "ExtendVolume", domain.KindVolume, id, func(o *modelObject, breaks bool) error {
		before := o.volume.Status
		if before != "available" && (before != "in-use" || !isAttached) || sizeGB <= o.volume.SizeGB {
			return apperr.New(apperr.Invalid, "volume %s is %s", id, before)
		}
		o.isVolume("extending")
		o.after(3*time.Second, func() {
			if !breaks { // else its backend has refused it
				o.volume.SizeGB = sizeGB
			}
			if o.isVolume("available"); len(o.volume.Servers) > 0 { // it may be detached meanwhile
				o.isVolume("in-use")
			}
		})
		return nil
	})
}

func (v modelView) VolumeFault(context.Context, string) (string, error) { return "no room", nil }

func (v modelView) DeleteVolume(ctx context.Context, id string) error {
	return absentIsDeleted(v.change(ctx, "DeleteVolume", domain.KindVolume, id, func(o *modelObject, _ bool) error {
		if len(o.volume.Servers) > 0 || o.volume.Status != "available" && !strings.HasPrefix(o.volume.Status, "error") {
			return apperr.New(apperr.Invalid, "volume %s is %s", id, o.volume.Status)
		}
		v.c.deletes(o, v.run)
		o.isVolume("deleting")
		o.after(2*time.Second, func() { o.isDeleted = true })
		return nil
	}))
}

// What follows is the model of Glance.

func modelImage(o *modelObject) domain.ImageDetail {
	i := o.image
	i.Tags, i.Properties = slices.Clone(i.Tags), maps.Clone(i.Properties)
	return i
}

func (v modelView) TaggedImages(ctx context.Context, _, tag string) ([]domain.ImageDetail, error) {
	key := "mark"
	if tag == markTag {
		key = ""
	}
	return modelList(ctx, v, "TaggedImages", key, func() (all []domain.ImageDetail, err error) {
		for _, o := range v.c.of(domain.KindImage) {
			if slices.Contains(o.image.Tags, tag) {
				all = append(all, modelImage(o))
			}
		}
		return all, nil
	})
}

func (v modelView) ImageDetail(ctx context.Context, id string) (domain.ImageDetail, error) {
	return modelRead(ctx, v, "ImageDetail", domain.KindImage, id, modelImage)
}

// Images are those of the cloud besides what is declared.
func (v modelView) Images(ctx context.Context, name string) ([]domain.Image, error) {
	return modelList(ctx, v, "Images", name, func() (all []domain.Image, err error) {
		for _, one := range []string{"cirros", "ubuntu"} {
			if name == "" || name == one {
				all = append(all, domain.Image{ID: "image-" + one, Name: one, Status: "active"})
			}
		}
		return all, nil
	})
}

func (v modelView) CreateImage(ctx context.Context, r domain.ImageRequest) (id string, err error) {
	id = v.run.newID("image " + r.Name)
	return id, v.write(ctx, "CreateImage", r.Name, func(bool) error {
		member, _ := taggedMember(r.Tags)
		i := domain.ImageDetail{
			OwnerID: "p", ContainerFormat: r.ContainerFormat, Tags: slices.Clone(r.Tags), Properties: r.Properties,
			CreatedAt: time.Now(), UpdatedAt: time.Now(),
		}
		i.ID, i.Name, i.Status, i.DiskFormat, i.MinDiskGB = id, r.Name, "queued", r.DiskFormat, r.MinDiskGB
		v.c.add(&modelObject{kind: domain.KindImage, id: id, label: r.Name, member: member, image: i})
		return nil
	})
}

// UploadImage breaks when Glance dies during it.
func (v modelView) UploadImage(ctx context.Context, id string, content io.Reader) error {
	text, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	return v.change(ctx, "UploadImage", domain.KindImage, id, func(o *modelObject, breaks bool) error {
		if o.image.Status != "queued" {
			return apperr.New(apperr.Conflict, "image %s is %s", id, o.image.Status)
		}
		o.image.UpdatedAt = time.Now()
		if breaks {
			o.image.Status = "saving"
			return apperr.New(apperr.Unavailable, "glance is unavailable")
		}
		sum := sha512.Sum512(text)
		o.image.Status, o.image.SHA512, o.hasData = "active", hex.EncodeToString(sum[:]), true
		return nil
	})
}

func (v modelView) ChangeImage(ctx context.Context, id string, change domain.ImageChange) error {
	return v.change(ctx, "ChangeImage", domain.KindImage, id, func(o *modelObject, _ bool) error {
		if change.Name != nil {
			o.image.Name = *change.Name
		}
		if change.MinDiskGB != nil {
			o.image.MinDiskGB = *change.MinDiskGB
		}
		if change.Tags != nil {
			o.image.Tags = slices.Clone(change.Tags)
		}
		o.image.UpdatedAt = time.Now()
		return nil
	})
}

func (v modelView) DeleteImage(ctx context.Context, id string) error {
	return absentIsDeleted(v.change(ctx, "DeleteImage", domain.KindImage, id, func(o *modelObject, _ bool) error {
		v.c.deletes(o, v.run)
		o.isDeleted = true
		return nil
	}))
}

// What follows is the model of Barbican.

func (v modelView) Secrets(ctx context.Context, name string) ([]domain.StoredSecret, error) {
	key, _, _ := strings.Cut(name, secretMark)
	return modelList(ctx, v, "Secrets", key, func() (all []domain.StoredSecret, err error) {
		for _, o := range v.c.of(domain.KindSecret) {
			if name == "" || o.secret.Name == name {
				all = append(all, o.secret)
			}
		}
		return all, nil
	})
}

func (v modelView) Secret(ctx context.Context, id string) (domain.StoredSecret, error) {
	return modelRead(ctx, v, "Secret", domain.KindSecret, id, func(o *modelObject) domain.StoredSecret {
		return o.secret
	})
}

func (v modelView) StoreSecret(
	ctx context.Context, name, contentType string, payload domain.Secret,
) (id string, err error) {
	label, mark, _ := strings.Cut(name, secretMark)
	id = v.run.newID("secret " + label)
	return id, v.write(ctx, "StoreSecret", label, func(breaks bool) error {
		one := domain.StoredSecret{ID: id, Name: name, Status: "ACTIVE", ContentType: contentType}
		one.CreatedAt = time.Now()
		if breaks { // Barbican has died between its two steps
			one.ContentType = ""
		}
		v.c.add(&modelObject{
			kind: domain.KindSecret, id: id, label: label, member: uuid.MustParse(mark), hasData: !breaks, secret: one,
			payload: payload.Reveal(),
		})
		if breaks {
			return apperr.New(apperr.Unavailable, "barbican is unavailable")
		}
		return nil
	})
}

func (v modelView) FillSecret(ctx context.Context, id, contentType string, payload domain.Secret) error {
	return v.change(ctx, "FillSecret", domain.KindSecret, id, func(o *modelObject, _ bool) error {
		if o.secret.ContentType != "" {
			return apperr.New(apperr.Conflict, "secret %s has a payload", id)
		}
		o.secret.ContentType, o.payload, o.hasData = contentType, payload.Reveal(), true
		return nil
	})
}

func (v modelView) DeleteSecret(ctx context.Context, id string) error {
	return absentIsDeleted(v.change(ctx, "DeleteSecret", domain.KindSecret, id, func(o *modelObject, _ bool) error {
		v.c.deletes(o, v.run)
		o.isDeleted = true
		return nil
	}))
}
