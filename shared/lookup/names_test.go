package lookup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeGlance has a list of images.
type fakeGlance []domain.Image

func (a fakeGlance) Image(_ context.Context, id string) (domain.Image, error) {
	for _, i := range a {
		if i.ID == id {
			return i, nil
		}
	}
	return domain.Image{}, apperr.New(apperr.NotFound, "no")
}

// Images takes names that differ in case for equal, as Glance's database may.
func (a fakeGlance) Images(_ context.Context, name string) (found []domain.Image, err error) {
	for _, i := range a {
		if name == "" || strings.EqualFold(i.Name, name) {
			found = append(found, i)
		}
	}
	return found, nil
}

// TestFindAndPickImages finds images by id or unique name. Inactive ones do not count while another is active.
func TestFindAndPickImages(t *testing.T) {
	t.Parallel()
	id := uuid.NewString()
	images := fakeGlance{
		{ID: id, Name: "community", Status: "active"},
		{ID: "1", Name: "plain", Status: "active"},
		{ID: "2", Name: "Plain", Status: "active"},
		{ID: "3", Name: "renewed", Status: "deactivated"},
		{ID: "4", Name: "renewed", Status: "active"},
		{ID: "5", Name: "twice", Status: "active"},
		{ID: "6", Name: "twice", Status: "active"},
		{ID: "7", Name: "retired", Status: "deactivated"},
	}
	for ref, want := range map[string]string{
		id: id, strings.ToUpper(id): "invalid", "plain": "1", "renewed": "4", "retired": "7", "twice": "conflict",
		"none": "invalid",
	} {
		found, err := FindImages(t.Context(), images, ref)
		if err != nil {
			t.Fatal(err)
		}
		got, err := PickImage(found, Ref{"image", ref})
		if err != nil {
			got.ID = string(apperr.CodeOf(err))
		}
		if got.ID != want {
			t.Errorf("%s: got %s, want %s", ref, got.ID, want)
		}
	}
}

// TestAbsentImage names the active images that there are, and the nearest of them.
func TestAbsentImage(t *testing.T) {
	t.Parallel()
	images := fakeGlance{
		{ID: "1", Name: "cirros", Status: "active"},
		{ID: "2", Name: "debian", Status: "active"},
		{ID: "3", Name: "cirrus-old", Status: "deactivated"},
	}
	for ref, near := range map[string]string{"cirrus": `; did you mean "cirros"?`, uuid.NewString(): ""} {
		found, err := FindImages(t.Context(), images, ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range [][]domain.Image{found, FilterImages(images, ref)} {
			_, err = PickImage(found, Ref{"image", ref})
			want := apperr.Field{
				Field: "image", Detail: fmt.Sprintf("there is no image %q", ref) + near,
				Allowed: []string{"cirros", "debian"},
			}
			if diff := cmp.Diff([]apperr.Field{want}, apperr.As(err).Fields); diff != "" {
				t.Error(diff)
			}
		}
	}
}

// TestPickNetworks finds networks by id or name; without names, the only one that is not external.
func TestPickNetworks(t *testing.T) {
	t.Parallel()
	inside, other := domain.Network{ID: "1", Name: "in"}, domain.Network{ID: "3", Name: "in"}
	outside := domain.Network{ID: "2", Name: "out", External: true}
	for name, tc := range map[string]struct {
		networks []domain.Network
		refs     []Ref
		want     []Ref
		code     apperr.Code
	}{
		"by name and id": {
			[]domain.Network{inside, outside},
			[]Ref{{"networks[0]", "out"}, {"networks[1]", "1"}},
			[]Ref{{"networks[0]", "2"}, {"networks[1]", "1"}},
			"",
		},
		"the only one":    {[]domain.Network{inside, outside}, nil, []Ref{{"networks", "1"}}, ""},
		"one of several":  {[]domain.Network{inside, other}, nil, nil, apperr.Invalid},
		"none at all":     {[]domain.Network{outside}, nil, nil, apperr.Invalid},
		"two of the name": {[]domain.Network{inside, other}, []Ref{{"networks[0]", "in"}}, nil, apperr.Conflict},
		"no such name":    {[]domain.Network{inside}, []Ref{{"networks[0]", "x"}}, nil, apperr.Invalid},
	} {
		got, err := PickNetworks(tc.networks, tc.refs)
		if diff := cmp.Diff(tc.want, got); diff != "" || apperr.CodeOf(err) != tc.code {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// TestFindSecurityGroups: the exact name or the id, each once; names stay where the cloud withholds the list.
func TestFindSecurityGroups(t *testing.T) {
	t.Parallel()
	list := func(err error) func(context.Context) ([]domain.SecurityGroup, error) {
		return func(context.Context) ([]domain.SecurityGroup, error) {
			return []domain.SecurityGroup{
				{ID: "1", Name: "web"}, {ID: "2", Name: "Web"}, {ID: "3", Name: "twin"}, {ID: "4", Name: "twin"},
			}, err
		}
	}
	for _, row := range []struct {
		given, want string
		err         error
		code        apperr.Code
	}{
		{"web Web 1 3", "1 2 3", nil, ""},
		{"web twin", "", nil, apperr.Conflict},
		{"web WEB", "", nil, apperr.Invalid},
		{"web WEB", "web WEB", apperr.New(apperr.Forbidden, "no"), ""},
		{"web", "", apperr.New(apperr.Unavailable, "down"), apperr.Unavailable},
	} {
		ids, err := FindSecurityGroups(t.Context(), list(row.err), "groups", strings.Fields(row.given))
		if got := strings.Join(ids, " "); got != row.want || (err != nil) != (row.code != "") ||
			err != nil && apperr.CodeOf(err) != row.code {
			t.Errorf("%s: got %q %v, want %q", row.given, got, err, row.want)
		}
	}
	if _, err := FindSecurityGroups(t.Context(), list(nil), "groups", []string{"web", "twin"}); !slices.Equal(
		apperr.As(err).Fields[0].Allowed, []string{"3", "4"}) || apperr.As(err).Fields[0].Field != "groups[1]" {
		t.Errorf("got %v", err)
	}
	if ids, err := FindSecurityGroups(t.Context(), nil, "groups", nil); ids != nil || err != nil {
		t.Errorf("of none: %v %v", ids, err)
	}
}

// slowStore fakes a database whose reads take a while, and that has the resources once a check was requested.
type slowStore struct {
	read     time.Duration
	never    bool
	requests int
}

func (s *slowStore) Resources(
	context.Context, string, uuid.UUID,
) (domain.AvailableResources, time.Duration, bool, error) {
	time.Sleep(s.read)
	return domain.AvailableResources{}, 0, s.requests > 0 && !s.never, nil
}

func (s *slowStore) RequestCheck(context.Context, string, uuid.UUID) (time.Time, error) {
	s.requests++
	return time.Time{}, nil
}

// TestResourcesOfSlowDatabase: the check is requested once, however long the first read takes.
func TestResourcesOfSlowDatabase(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]*slowStore{
		"fast": {}, "slow": {read: 400 * time.Millisecond}, "slower than the wait": {read: 20 * time.Second},
		"never checked": {never: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			wakes := 0
			_, _, found, err := Resources(t.Context(), store, func(...string) { wakes++ }, domain.Connection{})
			if err != nil || store.requests != 1 || wakes != 1 {
				t.Errorf("%s: %d requests, %d wakes, %v", name, store.requests, wakes, err)
			}
			if want := !store.never && store.read < resourceWait; found != want {
				t.Errorf("%s: found is %t", name, found)
			}
		})
	}
}
