package managed

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// sameCloud has a flavor, an image, two networks and three security groups.
type sameCloud struct {
	Cloud

	err error // of Neutron and Glance
}

func (sameCloud) Flavors(context.Context) ([]domain.Flavor, error) {
	return []domain.Flavor{{ID: "1", Name: "tiny"}}, nil
}

func (c sameCloud) Networks(context.Context) ([]domain.Network, error) {
	return []domain.Network{{ID: "n1", Name: "private"}, {ID: "n2", Name: "public", External: true}}, c.err
}

func (c sameCloud) SecurityGroups(context.Context) ([]domain.SecurityGroup, error) {
	return []domain.SecurityGroup{{ID: "g1", Name: "default"}, {ID: "g2", Name: "web"}, {ID: "g3", Name: "db"}}, c.err
}

func (sameCloud) Image(context.Context, string) (domain.Image, error) {
	return domain.Image{}, apperr.New(apperr.NotFound, "no such image")
}

func (c sameCloud) Images(context.Context, string) ([]domain.Image, error) {
	return []domain.Image{{ID: imageOne, Name: "cirros", Status: "active"}}, c.err
}

// matchedInRound is the resource after a round has compared its member with the object.
func matchedInRound(t *testing.T, cloud Cloud, in Wanted, o Object, since ...domain.Revision) *resource {
	t.Helper()
	m := &resource{Managed: in.Resource, driver: &MachineDriver{}, session: Session{Cloud: cloud}}
	m.Spec, m.Members = in.Spec, []domain.Member{in.Member}
	m.Made = map[int]domain.Revision{in.Made.Number: in.Made}
	for _, r := range since {
		m.Made[r.Number] = r
	}
	(&round{around: in.Around}).match(t.Context(), m, map[uuid.UUID]Object{in.Member.ID: o})
	return m
}

// declaredAnew is a ready server that was made from one spec, and another spec that is declared now.
func declaredAnew(made, declared string) (Wanted, Object) {
	_, in := newFakeNova("tiny")
	in.Resource.Revision, in.Member.Status = 2, domain.MemberReady
	in.Spec, in.Made.Spec = json.RawMessage(declared), json.RawMessage(made)
	return in, machineObject(domain.Server{
		ID: "s", Name: "web", Status: "ACTIVE", Tags: []string{in.Member.ID.String(), markTag},
		Flavor: domain.FlavorRef{ID: "1", Name: "tiny"}, Image: &domain.ImageRef{ID: imageOne},
	})
}

// TestSameSpecWrittenOtherwise: what stands for the same in another spelling or order is no difference, and what stands
// for something else is one.
func TestSameSpecWrittenOtherwise(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		made, declared string // fields
		differs        []string
	}{
		"order of groups":     {`"security_groups": ["web", "db"]`, `"security_groups": ["db", "web"]`, nil},
		"group by id":         {`"security_groups": ["web"]`, `"security_groups": ["g2"]`, nil},
		"group twice":         {`"security_groups": ["web"]`, `"security_groups": ["web", "g2"]`, nil},
		"default group":       {`"security_groups": []`, `"security_groups": ["default"]`, nil},
		"default group by id": {`"security_groups": ["g1"]`, `"tags": []`, nil},
		"other group": {
			`"security_groups": ["web"]`, `"security_groups": ["db"]`, []string{"security_groups"},
		},
		"group more":          {`"security_groups": ["web"]`, `"security_groups": ["web", "db"]`, []string{"security_groups"}},
		"network by id":       {`"networks": ["private"]`, `"networks": ["n1"]`, nil},
		"only network":        {`"networks": ["private"]`, `"networks": []`, nil},
		"other network":       {`"networks": ["private"]`, `"networks": ["n2"]`, []string{"networks"}},
		"image by name":       {`"image": "` + imageOne + `"`, `"image": "cirros"`, nil},
		"image by id":         {`"image": "cirros"`, `"image": "` + imageOne + `"`, nil},
		"other image":         {`"image": "cirros"`, `"image": "` + imageTwo + `"`, []string{"image"}},
		"order of configmaps": {`"configmaps": ["a", "b"]`, `"configmaps": ["b", "a"]`, nil},
		"other configmap":     {`"configmaps": ["a", "b"]`, `"configmaps": ["b"]`, []string{"configmaps"}},
	} {
		for _, update := range []string{domain.UpdateReplace, domain.UpdateInPlace} {
			base := `{"flavor": "tiny", "update": "` + update + `", `
			in, o := declaredAnew(base+tc.made+"}", base+tc.declared+"}")
			var got []string
			for _, one := range matchedInRound(t, sameCloud{}, in, o).members[0].differences {
				got = append(got, one.Field)
			}
			if !slices.Equal(got, tc.differs) {
				t.Errorf("%s, %s: it differs in %q, want %q", name, update, got, tc.differs)
			}
		}
	}
}

// TestHalfDeclared: what a revision has changed of a server that was never as it declared is a difference from the next
// one, although the server's own revision declares what the next one does.
func TestHalfDeclared(t *testing.T) {
	t.Parallel()
	const declared = `{"flavor": "tiny", "image": "` + imageTwo + `", "tags": ["a"], "metadata": {"b": "1"}}`
	in, o := declaredAnew(declared, declared)
	in.Member.Revision, in.Resource.Revision, in.Made.Number = 1, 3, 1
	in.Member.IsRebuilt = true
	server, _ := o.Raw.(domain.Server)
	server.Tags, server.Metadata = append(server.Tags, "a", "c", "others"), map[string]string{"b": "1", "d": "2"}
	o.Raw = server
	m := matchedInRound(t, sameCloud{}, in, o, domain.Revision{
		Number: 2, Spec: []byte(`{"flavor": "tiny", "image": "cirros", "tags": ["c"], "metadata": {"d": "2"}}`),
	})
	var got []string
	for _, one := range m.members[0].differences {
		got = append(got, one.Field)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"image", "metadata.d", "tags.c"}) {
		t.Errorf("it differs in %q", got)
	}
}

// TestImageInCapitals: Glance and Nova show ids in small letters.
func TestImageInCapitals(t *testing.T) {
	t.Parallel()
	const id = "abcdefab-1111-4111-8111-111111111111"
	spec := domain.MachineSpec{Image: strings.ToUpper(id)}
	if actual, isOther := otherImage(spec, spec, domain.Server{Image: &domain.ImageRef{ID: id}}); isOther {
		t.Errorf("%s is another image than %s", actual, spec.Image)
	}
}

// TestZoneOfServer: a server that is in the declared zone, or may be in any, is not in another one.
func TestZoneOfServer(t *testing.T) {
	t.Parallel()
	for zone, isSame := range map[string]bool{"nova": true, "": true, "other": false} {
		in, o := declaredAnew(`{"flavor": "tiny"}`, `{"flavor": "tiny"}`)
		server, _ := o.Raw.(domain.Server)
		server.Zone, in.Made.Schedule.Zone, in.Resource.Schedule.Zone = "nova", "before", zone
		left := matchedInRound(t, sameCloud{}, in, machineObject(server)).members[0].differences
		if len(left) == 0 != isSame {
			t.Errorf("zone %q: %+v", zone, left)
		}
	}
}

// TestNothingIsReplacedForUnknownNames: while Neutron or Glance is unavailable, it is not known what a changed name
// means. Nothing is replaced or refused for it.
func TestNothingIsReplacedForUnknownNames(t *testing.T) {
	t.Parallel()
	cloud := sameCloud{err: apperr.New(apperr.Unavailable, "it is unavailable")}
	for _, change := range [][2]string{
		{`"networks": ["private"]`, `"networks": ["n1"]`},
		{`"security_groups": ["web"]`, `"security_groups": ["g2"]`},
		{`"image": "` + imageOne + `"`, `"image": "cirros"`},
	} {
		base := `{"flavor": "tiny", "update": "replace", `
		in, o := declaredAnew(base+change[0]+"}", base+change[1]+"}")
		m := matchedInRound(t, cloud, in, o)
		if m.notListed == nil || len(m.members) > 0 {
			t.Errorf("%s: %v, %+v", change[1], m.notListed, m.members)
		}
		in, o = declaredAnew(base+change[0]+"}", base+change[0]+"}")
		if m := matchedInRound(t, cloud, in, o); m.notListed != nil || len(m.members[0].differences) > 0 {
			t.Errorf("%s as before: %v, %+v", change[0], m.notListed, m.members)
		}
	}
}

// TestRetiredFlavor: a flavor that Nova lists no more is no difference of a server that was made with it, and no server
// is replaced for it. One that others have resized still differs.
func TestRetiredFlavor(t *testing.T) {
	t.Parallel()
	for _, update := range []string{domain.UpdateReplace, domain.UpdateInPlace} {
		for name, tc := range map[string]struct {
			made, declared, real string
			differs              []string
			replaces             bool
		}{
			"unchanged":             {"small-2023", "small-2023", "small64", nil, false},
			"by its name":           {"small64", "small64", "small64", nil, false},
			"from its id to name":   {"small-2023", "small64", "small64", nil, false},
			"resized by others":     {"tiny", "tiny", "small64", []string{"flavor"}, true},
			"to a listed one":       {"small-2023", "tiny", "small64", []string{"flavor"}, true},
			"to one that is absent": {"tiny", "small-2023", "tiny", []string{"flavor"}, true}, // it is looked up before
		} {
			spec := func(flavor, value string) string {
				return `{"flavor": "` + flavor + `", "metadata": {"k": "` + value + `"}, "update": "` + update + `"}`
			}
			in, o := declaredAnew(spec(tc.made, "a"), spec(tc.declared, "b"))
			server, _ := o.Raw.(domain.Server)
			server.Flavor, server.Metadata = domain.FlavorRef{Name: tc.real}, map[string]string{"k": "a"}
			if tc.real == "tiny" {
				server.Flavor.ID = "1"
			}
			var got []string
			for _, one := range matchedInRound(t, sameCloud{}, in, machineObject(server)).members[0].differences {
				got = append(got, one.Field)
				if one.Way == Replace && !tc.replaces {
					t.Errorf("%s: it is replaced for %s", name, one.Field)
				}
			}
			if want := append([]string{"metadata.k"}, tc.differs...); !slices.Equal(got, want) {
				t.Errorf("%s, %s: it differs in %q, want %q", name, update, got, want)
			}
		}
	}
}

// TestImageAfterRebuild: a server that may have been rebuilt, and is declared with its former image meanwhile, is
// compared by the image that it has. The image of others is the one that had the name when they were made.
func TestImageAfterRebuild(t *testing.T) {
	t.Parallel()
	const spec = `{"flavor": "tiny", "image": "cirros"}`
	for _, tc := range []struct {
		isRebuilt bool
		image     string
		isOther   bool
	}{{true, imageTwo, true}, {true, imageOne, false}, {false, imageTwo, false}} {
		in, o := declaredAnew(spec, spec)
		in.Member.IsRebuilt, in.Member.UserData = tc.isRebuilt, "digest of a rebuild that may not have been made"
		server, _ := o.Raw.(domain.Server)
		server.Image = &domain.ImageRef{ID: tc.image}
		m := matchedInRound(t, sameCloud{}, in, machineObject(server))
		if got := differs(m.members[0].differences, "image"); got != tc.isOther {
			t.Errorf("%+v: it differs by %+v", tc, m.members[0].differences)
		}
		if isKnown := m.members[0].member.UserData != ""; isKnown == tc.isRebuilt {
			t.Errorf("%+v: which user_data it has is known: %t", tc, isKnown)
		}
	}
}
