package managed

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// modelObject is an object of the model: a volume, an image or a secret.
type modelObject struct {
	kind     domain.Kind
	member   uuid.UUID // whose mark it was made with
	isReady  bool      // it was ready once: it has data
	isDone   bool      // it is deleted
	isFailed bool      // others, or Cinder, have put it in error
	isOthers bool      // others have changed its mark, or deleted it
	shownAt  time.Time // lists leave it out until then
	readyAt  time.Time
	volume   domain.Volume
	image    domain.ImageDetail
	secret   domain.StoredSecret
}

// modelCloud is a model of Cinder, Glance and Barbican, of which calls fail as a test says.
type modelCloud struct {
	Cloud

	mu      sync.Mutex
	objects []*modelObject
	faults  map[string]string // of this round, by the method
	short   bool              // lists leave out what they show last
	crash   func()            // ends the process
	writes  int
	calls   int
	permit  func(*modelObject) string // why an object must not be deleted; "" = it may be
	broken  []string                  // rules that were broken
}

// modelFaults are the ways in which a call fails.
var modelFaults = []string{"400", "403", "404", "409", "429", "500", "503", "worked", "crash", "crash after"}

// fault is how a call fails before it has done something.
func (c *modelCloud) fault(method string) error {
	c.calls++
	codes := map[string]apperr.Code{
		"400": apperr.Invalid, "403": apperr.Forbidden, "404": apperr.NotFound, "409": apperr.Conflict,
		"429": apperr.RateLimited, "500": apperr.BadGateway, "503": apperr.Unavailable,
	}
	how := c.faults[method]
	if how == "crash" {
		c.crash()
		return context.Canceled
	}
	if code, ok := codes[how]; ok {
		return apperr.New(code, "%s fails with %s", method, how)
	}
	return nil
}

// after is how a call fails that has done what it should.
func (c *modelCloud) after(method string) error {
	switch c.faults[method] {
	case "worked":
		return apperr.New(apperr.Unavailable, "%s: the response is late", method)
	case "crash after":
		c.crash()
		return context.Canceled
	}
	return nil
}

// read calls get unless the method fails.
func modelRead[T any](c *modelCloud, method string, get func() (T, error)) (out T, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err = c.fault(method); err != nil {
		return out, err
	}
	return get()
}

// list returns the objects that a list of a kind shows.
func (c *modelCloud) list(kind domain.Kind) (all []*modelObject) {
	for _, o := range c.objects {
		if o.kind == kind && !o.isDone && !time.Now().Before(o.shownAt) {
			all = append(all, o.now())
		}
	}
	if c.short && len(all) > 0 {
		all = all[:len(all)-1]
	}
	return all
}

// now brings an object to what it is by now.
func (o *modelObject) now() *modelObject {
	if o.isFailed || time.Now().Before(o.readyAt) {
		return o
	}
	o.volume.Status = "available"
	o.isReady = o.isReady || o.kind == domain.KindVolume
	return o
}

// get finds an object by its id.
func (c *modelCloud) get(kind domain.Kind, id string) (*modelObject, error) {
	for _, o := range c.objects {
		if o.kind == kind && !o.isDone && o.id() == id {
			return o.now(), nil
		}
	}
	return nil, apperr.New(apperr.NotFound, "there is no %s %s", kind, id)
}

func (o *modelObject) id() string { return o.volume.ID + o.image.ID + o.secret.ID }

// add makes an object.
func (c *modelCloud) add(method string, o *modelObject) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	if err := c.fault(method); err != nil {
		return "", err
	}
	if c.faults[method] == "worked" { // no list shows it before the call has ended
		o.shownAt = time.Now().Add(20 * time.Second)
	}
	c.objects = append(c.objects, o)
	if err := c.after(method); err != nil {
		return "", err
	}
	return o.id(), nil
}

// change changes an object.
func (c *modelCloud) change(method string, kind domain.Kind, id string, do func(*modelObject)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	if err := c.fault(method); err != nil {
		return err
	}
	o, err := c.get(kind, id)
	if err != nil {
		return err
	}
	do(o)
	return c.after(method)
}

// remove deletes an object, and records when no rule permits that.
func (c *modelCloud) remove(method string, kind domain.Kind, id string) error {
	err := c.change(method, kind, id, func(o *modelObject) {
		if why := c.permit(o); why != "" {
			c.broken = append(c.broken, fmt.Sprintf("%s of %s %s: %s", method, kind, id, why))
		}
		o.isDone = true
	})
	if c.faults[method] == "" && apperr.CodeOf(err) == apperr.NotFound { // as the real clients do
		return nil
	}
	return err
}

func (c *modelCloud) Volumes(_ context.Context, key, value string) ([]domain.Volume, error) {
	return modelRead(c, "Volumes", func() (all []domain.Volume, err error) {
		for _, o := range c.list(domain.KindVolume) {
			if v := o.volume; key == "" || v.Metadata[key] == value {
				v.Metadata = maps.Clone(v.Metadata)
				all = append(all, v)
			}
		}
		return all, nil
	})
}

func (c *modelCloud) Volume(_ context.Context, id string) (domain.Volume, error) {
	return modelRead(c, "Volume", func() (domain.Volume, error) {
		o, err := c.get(domain.KindVolume, id)
		if err != nil {
			return domain.Volume{}, err
		}
		v := o.volume
		v.Metadata = maps.Clone(v.Metadata)
		return v, nil
	})
}

func (c *modelCloud) CreateVolume(_ context.Context, r domain.VolumeRequest) (string, error) {
	member, _ := uuid.Parse(r.Metadata[markKey])
	now := time.Now()
	return c.add("CreateVolume", &modelObject{
		kind: domain.KindVolume, member: member, readyAt: now.Add(3 * time.Second), volume: domain.Volume{
			ID: uuid.NewString(), Name: r.Name, Description: r.Description, Status: "creating", SizeGB: r.SizeGB,
			Metadata: maps.Clone(r.Metadata), CreatedAt: now, UpdatedAt: now,
		},
	})
}

func (c *modelCloud) DescribeVolume(_ context.Context, id, name, description string) error {
	return c.change("DescribeVolume", domain.KindVolume, id, func(o *modelObject) {
		o.volume.Name, o.volume.Description = name, description
	})
}

func (c *modelCloud) SetVolumeMetadata(_ context.Context, id string, set map[string]string, remove []string) error {
	return c.change("SetVolumeMetadata", domain.KindVolume, id, func(o *modelObject) {
		maps.Copy(o.volume.Metadata, set)
		for _, key := range remove {
			delete(o.volume.Metadata, key)
		}
	})
}

func (c *modelCloud) ExtendVolume(_ context.Context, id string, sizeGB int, _ bool) error {
	return c.change("ExtendVolume", domain.KindVolume, id, func(o *modelObject) {
		o.volume.SizeGB, o.volume.Status, o.readyAt = sizeGB, "extending", time.Now().Add(3*time.Second)
	})
}

func (*modelCloud) VolumeFault(context.Context, string) (string, error) { return "no room", nil }

func (c *modelCloud) DeleteVolume(_ context.Context, id string) error {
	return c.remove("DeleteVolume", domain.KindVolume, id)
}

func (c *modelCloud) TaggedImages(_ context.Context, _, tag string) ([]domain.ImageDetail, error) {
	return modelRead(c, "TaggedImages", func() (all []domain.ImageDetail, err error) {
		for _, o := range c.list(domain.KindImage) {
			if slices.Contains(o.image.Tags, tag) {
				all = append(all, o.image)
			}
		}
		return all, nil
	})
}

func (c *modelCloud) ImageDetail(_ context.Context, id string) (domain.ImageDetail, error) {
	return modelRead(c, "ImageDetail", func() (domain.ImageDetail, error) {
		o, err := c.get(domain.KindImage, id)
		if err != nil {
			return domain.ImageDetail{}, err
		}
		return o.image, nil
	})
}

func (c *modelCloud) CreateImage(_ context.Context, r domain.ImageRequest) (string, error) {
	member, _ := taggedMember(r.Tags)
	i := domain.ImageDetail{
		OwnerID: "p", ContainerFormat: r.ContainerFormat, Tags: r.Tags, CreatedAt: time.Now(), UpdatedAt: time.Now(),
	}
	i.ID, i.Name, i.Status, i.DiskFormat, i.MinDiskGB = uuid.NewString(), r.Name, "queued", r.DiskFormat, r.MinDiskGB
	return c.add("CreateImage", &modelObject{kind: domain.KindImage, member: member, image: i})
}

func (c *modelCloud) UploadImage(_ context.Context, id string, _ io.Reader) error {
	return c.change("UploadImage", domain.KindImage, id, func(o *modelObject) {
		o.image.Status, o.isReady = "active", true
	})
}

func (c *modelCloud) ChangeImage(_ context.Context, id string, change domain.ImageChange) error {
	return c.change("ChangeImage", domain.KindImage, id, func(o *modelObject) {
		if change.Name != nil {
			o.image.Name = *change.Name
		}
		if change.MinDiskGB != nil {
			o.image.MinDiskGB = *change.MinDiskGB
		}
		if change.Tags != nil {
			o.image.Tags = change.Tags
		}
	})
}

func (c *modelCloud) DeleteImage(_ context.Context, id string) error {
	return c.remove("DeleteImage", domain.KindImage, id)
}

func (c *modelCloud) Secrets(_ context.Context, name string) ([]domain.StoredSecret, error) {
	return modelRead(c, "Secrets", func() (all []domain.StoredSecret, err error) {
		for _, o := range c.list(domain.KindSecret) {
			if name == "" || o.secret.Name == name {
				all = append(all, o.secret)
			}
		}
		return all, nil
	})
}

func (c *modelCloud) Secret(_ context.Context, id string) (domain.StoredSecret, error) {
	return modelRead(c, "Secret", func() (domain.StoredSecret, error) {
		o, err := c.get(domain.KindSecret, id)
		if err != nil {
			return domain.StoredSecret{}, err
		}
		return o.secret, nil
	})
}

func (c *modelCloud) StoreSecret(_ context.Context, name, contentType string, _ domain.Secret) (string, error) {
	return c.add("StoreSecret", &modelObject{
		kind: domain.KindSecret, member: uuid.MustParse(name[len(name)-36:]), isReady: true, secret: domain.StoredSecret{
			ID: uuid.NewString(), Name: name, Status: "ACTIVE", ContentType: contentType, CreatedAt: time.Now(),
		},
	})
}

func (c *modelCloud) DeleteSecret(_ context.Context, id string) error {
	return c.remove("DeleteSecret", domain.KindSecret, id)
}
