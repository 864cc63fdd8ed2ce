package openstack

import (
	"context"
	"net/url"
	"strconv"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumes"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// The microversions of Cinder that calls request.
const (
	cinderBase        = "3.0"
	cinderMessages    = "3.5"  // of one volume
	cinderExtendInUse = "3.42" // of a volume that is attached
)

type volume struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Status      string            `json:"status"`
	Size        int               `json:"size"`
	Type        string            `json:"volume_type"`
	Zone        string            `json:"availability_zone"`
	Metadata    map[string]string `json:"metadata"`
	Created     naiveTime         `json:"created_at"`
	Updated     naiveTime         `json:"updated_at"` // null until its first change
	Multiattach bool              `json:"multiattach"`
	Bootable    string            `json:"bootable"` // true or false
	Project     string            `json:"os-vol-tenant-attr:tenant_id"`
	OfImage     struct {
		AdminUser string `json:"os_admin_user"`
		Distro    string `json:"os_distro"`
	} `json:"volume_image_metadata"` // of the image that it was made from
	Attachments []struct {
		Server string `json:"server_id"`
	} `json:"attachments"`
}

func (v *volume) domain() domain.Volume {
	out := domain.Volume{
		ID: v.ID, ProjectID: v.Project, Name: v.Name, Description: v.Description, Status: v.Status, SizeGB: v.Size,
		Type: v.Type, Zone: v.Zone, Metadata: v.Metadata, CreatedAt: v.Created.Time,
		UpdatedAt: v.Updated.Time, IsMultiattach: v.Multiattach, IsBootable: v.Bootable == "true",
		LoginUser: domain.LoginUser(v.OfImage.AdminUser, v.OfImage.Distro),
	}
	if out.UpdatedAt.IsZero() {
		out.UpdatedAt = out.CreatedAt
	}
	for _, a := range v.Attachments {
		if a.Server != "" { // it is attached to a host
			out.Servers = append(out.Servers, a.Server)
		}
	}
	return out
}

func (s *Session) cinder(ctx context.Context, microversion string) (*gophercloud.ServiceClient, error) {
	return s.clientOf(ctx, "volumev3", "", microversion)
}

// Volumes lists the project's volumes. key and value are an item of their metadata; "" = all volumes. An operator may
// take the filter away (resource_filters.json), so callers compare themselves, too.
func (s *Session) Volumes(ctx context.Context, key, value string) ([]domain.Volume, error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return nil, err
	}
	query := url.Values{"limit": {"1000"}}
	if key != "" {
		query.Set("metadata", "{'"+key+"': '"+value+"'}") // in Python's form, in which Cinder wants it
	}
	type page struct {
		Volumes []volume `json:"volumes"`
		Links   []link   `json:"volumes_links"`
	}
	found, err := everyPage(ctx, cinder, cinder.ServiceURL("volumes", "detail"), query,
		func(p *page) ([]volume, string) { return p.Volumes, linkTo(p.Links) },
		func(v volume) string { return v.ID })
	out := make([]domain.Volume, len(found))
	for i := range found {
		out[i] = found[i].domain()
	}
	return out, err
}

// maxVolumePage is Cinder's osapi_max_limit, unless an operator has changed it.
const maxVolumePage = 1000

// VolumePage reads one page of the project's volumes, the newest first. hasMore reports whether others follow. An
// operator may take filters away (resource_filters.json), and Cinder compares whole names only, so it has volumes that
// the query does not select.
func (s *Session) VolumePage(
	ctx context.Context, q domain.VolumeQuery,
) (page []domain.Volume, hasMore bool, err error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return nil, false, err
	}
	// One more than the page shows whether others follow. Cinder has a link at the end of each full page.
	query := url.Values{"limit": {strconv.Itoa(min(q.Limit+1, maxVolumePage))}, "sort": {"created_at:desc,id:desc"}}
	for name, value := range map[string]string{"marker": q.Marker, "status": q.Status} {
		if value != "" {
			query.Set(name, value)
		}
	}
	var body struct {
		Volumes []volume `json:"volumes"`
		Links   []link   `json:"volumes_links"`
	}
	if err := getPage(ctx, cinder, cinder.ServiceURL("volumes", "detail")+"?"+query.Encode(), &body); err != nil {
		return nil, false, classify("cinder", err)
	}
	hasMore = len(body.Volumes) > q.Limit || linkTo(body.Links) != ""
	page = make([]domain.Volume, min(q.Limit, len(body.Volumes)))
	for n := range page {
		page[n] = body.Volumes[n].domain()
	}
	return page, hasMore && len(page) > 0, nil
}

// OwnVolume reads a volume of the project. Cinder shows admins the volumes of other projects, too: here they are
// NotFound, with Cinder's words.
func (s *Session) OwnVolume(ctx context.Context, id, projectID string) (domain.Volume, error) {
	v, err := s.Volume(ctx, id)
	if err == nil && v.ProjectID != "" && v.ProjectID != projectID {
		return domain.Volume{}, apperr.New(apperr.NotFound, "cinder: Volume %s could not be found.", id)
	}
	return v, err
}

// Volume reads one volume.
func (s *Session) Volume(ctx context.Context, id string) (domain.Volume, error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return domain.Volume{}, err
	}
	var found struct {
		Volume volume `json:"volume"`
	}
	err = get(ctx, cinder, cinder.ServiceURL("volumes", url.PathEscape(id)), &found)
	return found.Volume.domain(), err
}

// VolumeFault returns what Cinder says about the last failure of a volume; "" = nothing.
func (s *Session) VolumeFault(ctx context.Context, id string) (string, error) {
	cinder, err := s.cinder(ctx, cinderMessages)
	if err != nil {
		return "", err
	}
	var found struct {
		Messages []struct {
			Text string `json:"user_message"`
		} `json:"messages"`
	}
	query := url.Values{"resource_uuid": {id}, "sort": {"created_at:desc"}, "limit": {"1"}}
	opts := &gophercloud.RequestOpts{OkCodes: []int{200}}
	_, err = cinder.Get(ctx, cinder.ServiceURL("messages")+"?"+query.Encode(), &found, opts)
	if err != nil || len(found.Messages) == 0 {
		return "", classify("cinder", err)
	}
	return found.Messages[0].Text, nil
}

// CreateVolume begins to make a volume.
func (s *Session) CreateVolume(ctx context.Context, r domain.VolumeRequest) (id string, err error) {
	made, err := s.MakeVolume(ctx, r)
	return made.ID, err
}

// MakeVolume is CreateVolume that returns the volume as Cinder shows it then.
func (s *Session) MakeVolume(ctx context.Context, r domain.VolumeRequest) (domain.Volume, error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return domain.Volume{}, err
	}
	var made volume
	err = volumes.Create(ctx, cinder, volumes.CreateOpts{
		Name: r.Name, Description: r.Description, Size: r.SizeGB, VolumeType: r.Type, ImageID: r.ImageID,
		SnapshotID: r.SnapshotID, SourceVolID: r.VolumeID, AvailabilityZone: r.Zone, Metadata: r.Metadata,
	}, nil).ExtractInto(&made)
	if err != nil {
		return domain.Volume{}, classify("cinder", err)
	}
	return made.domain(), nil
}

// onVolume makes a call that changes a volume.
func (s *Session) onVolume(
	ctx context.Context, microversion string, call func(*gophercloud.ServiceClient) error,
) error {
	cinder, err := s.cinder(ctx, microversion)
	if err != nil {
		return err
	}
	return classify("cinder", call(cinder))
}

// DescribeVolume changes the name and the description of a volume.
func (s *Session) DescribeVolume(ctx context.Context, id, name, description string) error {
	return s.onVolume(ctx, cinderBase, func(cinder *gophercloud.ServiceClient) error {
		return volumes.Update(ctx, cinder, id, volumes.UpdateOpts{Name: &name, Description: &description}).Err
	})
}

// SetVolumeMetadata sets items of a volume's metadata, and removes others. All else stays.
func (s *Session) SetVolumeMetadata(ctx context.Context, id string, set map[string]string, remove []string) error {
	return s.onVolume(ctx, cinderBase, func(cinder *gophercloud.ServiceClient) error {
		if len(set) > 0 {
			body := map[string]any{"metadata": set}
			opts := &gophercloud.RequestOpts{OkCodes: []int{200}}
			if _, err := cinder.Post(ctx, cinder.ServiceURL("volumes", id, "metadata"), body, nil, opts); err != nil {
				return err
			}
		}
		for _, key := range remove {
			address := cinder.ServiceURL("volumes", id, "metadata", url.PathEscape(key))
			_, err := cinder.Delete(ctx, address, &gophercloud.RequestOpts{OkCodes: []int{200, 204}})
			if err := absentIsDone(classify("cinder", err)); err != nil {
				return err
			}
		}
		return nil
	})
}

// ExtendVolume begins to enlarge a volume, also one that is attached.
func (s *Session) ExtendVolume(ctx context.Context, id string, sizeGB int, isAttached bool) error {
	microversion := cinderBase
	if isAttached {
		microversion = cinderExtendInUse
	}
	return s.onVolume(ctx, microversion, func(cinder *gophercloud.ServiceClient) error {
		return volumes.ExtendSize(ctx, cinder, id, volumes.ExtendSizeOpts{NewSize: sizeGB}).ExtractErr()
	})
}

// RetypeVolume begins to change the type of a volume, as far as its backend can without moving it. Cinder accepts it
// first and may fail later: the volume then has its old type.
func (s *Session) RetypeVolume(ctx context.Context, id, name string) error {
	return s.onVolume(ctx, cinderBase, func(cinder *gophercloud.ServiceClient) error {
		return volumes.ChangeType(ctx, cinder, id, volumes.ChangeTypeOpts{
			NewType: name, MigrationPolicy: volumes.MigrationPolicyNever,
		}).ExtractErr()
	})
}

// DeleteVolume begins to delete a volume. It is Invalid while the volume is used, such as by a snapshot.
func (s *Session) DeleteVolume(ctx context.Context, id string) error {
	return absentIsDone(s.onVolume(ctx, cinderBase, func(cinder *gophercloud.ServiceClient) error {
		return volumes.Delete(ctx, cinder, id, volumes.DeleteOpts{}).ExtractErr()
	}))
}
