package domain

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestFewestWriteRoles: a trust gets no role that does not permit changes, and admin only for want of another.
func TestFewestWriteRoles(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"": "", "admin": "admin", "admin manager member": "member", "admin manager": "manager",
		"member load-balancer_member creator": "member",
	} {
		roles := strings.Fields(given)
		got := Identity{Roles: append(roles, "heat_stack_user"), WriteRoles: roles}.FewestWriteRoles()
		if strings.Join(got, " ") != want {
			t.Errorf("%v: got %v", roles, got)
		}
	}
}

func TestSlot(t *testing.T) {
	t.Parallel()
	one := time.Date(2026, 1, 2, 13, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		now    time.Time
		slot   time.Time
		source Source
	}{
		"on time":             {one, one, Sampled},
		"a fast clock":        {one.Add(-200 * time.Millisecond), one, Sampled},
		"four minutes late":   {one.Add(4 * time.Minute), one, Sampled},
		"after an outage":     {one.Add(20 * time.Minute), one, Rebuilt},
		"just before the end": {one.Add(59 * time.Minute), one, Rebuilt},
		"a zone of :45":       {one.In(time.FixedZone("", 5*3600+45*60)), one, Sampled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Slot(tc.now); !got.Equal(tc.slot) {
				t.Errorf("slot is %s, want %s", got, tc.slot)
			}
			if got := HourKey(tc.slot.Local()); got != "2026-01-02T13:00:00Z" {
				t.Errorf("its key is %s", got)
			}
			if got := SourceAt(tc.slot, tc.now); got != tc.source {
				t.Errorf("source is %s, want %s", got, tc.source)
			}
		})
	}
}

func TestHours(t *testing.T) {
	t.Parallel()
	leap := time.Date(2028, 3, 1, 0, 0, 0, 0, time.UTC)
	got := Hours(leap, 3)
	want := []time.Time{leap.Add(-2 * time.Hour), leap.Add(-time.Hour), leap}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got[0].Day() != 29 {
		t.Errorf("the day before is %s", got[0])
	}
}

func TestHourCountLeavesOutWhatIsGone(t *testing.T) {
	t.Parallel()
	var c HourCount
	for _, s := range []VMState{
		StateActive, StateActive, StateStopped, StateAbsent, StateDeleted, StateSoftDel, StateError, "brand_new",
	} {
		c.Add(s)
	}
	want := HourCount{
		Running: 2, Total: 5, ByStatus: map[string]int{"ACTIVE": 2, "SHUTOFF": 1, "ERROR": 1, "brand_new": 1},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
}

func TestView(t *testing.T) {
	t.Parallel()
	member := Identity{ProjectID: "p1", DomainID: "d1", Roles: []string{"member", "reader"}}
	admin := Identity{ProjectID: "p1", DomainID: "d1", Roles: []string{"admin"}}
	ofDomain := Identity{DomainID: "d1", Roles: []string{"reader"}}
	noRole := Identity{DomainID: "d1", Roles: []string{"some_other"}}
	system := Identity{System: true, Roles: []string{"reader"}}
	for name, tc := range map[string]struct {
		who     Identity
		scope   Scope
		project string
		want    View
		code    apperr.Code
	}{
		"own project":               {member, "", "", View{Scope: ScopeProject, ProjectID: "p1"}, ""},
		"own project by id":         {member, "", "p1", View{Scope: ScopeProject, ProjectID: "p1"}, ""},
		"another project":           {member, "", "p2", View{}, apperr.Forbidden},
		"the domain, as a member":   {member, ScopeDomain, "", View{}, apperr.Forbidden},
		"the cloud, as a member":    {member, ScopeCloud, "", View{}, apperr.Forbidden},
		"another project, as admin": {admin, "", "p2", View{Scope: ScopeProject, ProjectID: "p2"}, ""},
		"the domain, as admin":      {admin, ScopeDomain, "", View{Scope: ScopeDomain, DomainID: "d1"}, ""},
		"the cloud, as admin":       {admin, ScopeCloud, "", View{Scope: ScopeCloud}, ""},
		"a domain's reader":         {ofDomain, "", "", View{Scope: ScopeDomain, DomainID: "d1"}, ""},
		"a domain's reader, one project": {
			ofDomain, "", "p9", View{Scope: ScopeProject, ProjectID: "p9", DomainID: "d1"}, "",
		},
		"a domain's reader, the cloud":    {ofDomain, ScopeCloud, "", View{}, apperr.Forbidden},
		"a domain's token without a role": {noRole, "", "", View{}, apperr.Forbidden},
		"a system reader":                 {system, "", "", View{Scope: ScopeCloud}, ""},
		"a system reader, no project":     {system, ScopeProject, "", View{}, apperr.Invalid},
		"a project with scope=domain":     {admin, ScopeDomain, "p1", View{}, apperr.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := NewView(tc.who, tc.scope, tc.project)
			if got != tc.want || apperr.CodeOf(err) != tc.code {
				t.Errorf("got %+v %v, want %+v %s", got, err, tc.want, tc.code)
			}
		})
	}
}

func TestSecretNeverShows(t *testing.T) {
	t.Parallel()
	in := struct {
		S Secret `json:"s"`
	}{}
	if err := json.Unmarshal([]byte(`{"s":"canary"}`), &in); err != nil || in.S.Reveal() != "canary" {
		t.Fatalf("got %q, %v", in.S.Reveal(), err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "s", in.S, "in", in)
	out, _ := json.Marshal(in)
	for _, text := range []string{
		fmt.Sprint(in.S), fmt.Sprintf("%v %+v %#v %s %q", in, in, in, in.S, in.S), string(out), log.String(),
	} {
		if strings.Contains(text, "canary") {
			t.Errorf("it shows in %s", text)
		}
	}
}

func TestStateOfUnknownStatusIsUpdating(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]InstanceState{
		"ACTIVE": InstanceActive, "UNKNOWN": InstanceUnknown, "VERIFY_RESIZE": InstanceUpdating,
		"NEW_IN_2030": InstanceUpdating,
	} {
		if got := StateOf(status, ""); got != want {
			t.Errorf("%s is %s, want %s", status, got, want)
		}
	}
}

// TestFaultStays: a list that leaves Nova's reason out says nothing new of an instance in error.
func TestFaultStays(t *testing.T) {
	t.Parallel()
	i := Instance{State: InstanceBuilding}
	if i.Seen(Server{ID: "s", Status: "ERROR"}); !i.Unexplained() {
		t.Errorf("without a reason it is %+v", i.Problem)
	}
	if changed := i.Seen(Server{ID: "s", Status: "ERROR", Fault: &Fault{Message: "No valid host"}}); !changed ||
		i.Unexplained() {
		t.Errorf("with a reason it is %+v", i.Problem)
	}
	if changed := i.Seen(Server{ID: "s", Status: "ERROR"}); changed || i.Problem.Detail != "No valid host" {
		t.Errorf("after a list without: %t %+v", changed, i.Problem)
	}
	if i.Seen(Server{ID: "s", Status: "ACTIVE"}); i.Problem != nil {
		t.Errorf("once it is active: %+v", i.Problem)
	}
	if i.Seen(Server{ID: "s", Status: "ERROR"}); !i.Unexplained() {
		t.Errorf("in error again, for another reason: %+v", i.Problem)
	}
}

// TestCheckTime: a setting is within its bounds, which the reason names as people write them.
func TestCheckTime(t *testing.T) {
	t.Parallel()
	for is, want := range map[time.Duration]string{
		10 * time.Second: "", 24 * time.Hour: "", 9 * time.Second: "X is 9s: it must be 10s to 24h",
		25 * time.Hour: "X is 25h0m0s: it must be 10s to 24h",
	} {
		got := ""
		if err := CheckTime("X", is, 10*time.Second, 24*time.Hour); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 20 * time.Minute: "20m", 90 * time.Minute: "1h30m", 100 * time.Millisecond: "100ms",
		time.Hour + 5*time.Second: "1h0m5s", 720 * time.Hour: "720h",
	} {
		if got := ShortTime(d); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}
