package launch

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLaunchWithOptions compares the servers in Nova with their options. One server has its own.
func TestLaunchWithOptions(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	nova := testkit.Compute(t, p.Login(t))
	nova.Microversion = "2.52"
	groups := map[string]string{}
	for _, name := range []string{"apart", "together"} {
		groups[name] = p.MakeServerGroup(t, name)
	}
	request := object{
		"id": uuid.NewString(), "tags": []string{"team:a", "web ✓"}, "description": "of the course ✓",
		"config_drive": true, "server_group": "apart", "scheduler_hints": object{"different_host": []string{uuid.NewString()}},
		"instances": []object{{}, {
			"tags": []string{}, "description": "", "config_drive": false, "server_group": groups["together"],
			"scheduler_hints": object{},
		}, {"server_group": ""}},
	}
	var report launchReport
	app.Post(t, "/v1/launch?dry_run=true", body(t, request)).JSON(t, &report)
	if !report.OK || len(report.Resolved) != 3 || report.Resolved[0].ServerGroupID != groups["apart"] ||
		report.Resolved[1].ServerGroupID != groups["together"] || report.Resolved[2].ServerGroupID != "" {
		t.Errorf("the dry run gives %+v", report)
	}
	unknown := app.Post(t, "/v1/launch?dry_run=true", body(t, object{"server_group": "apartt"}))
	if text := string(unknown.Body); !strings.Contains(text, `did you mean \"apart\"?`) {
		t.Errorf("an unknown group: got %s", text)
	}
	var order Order
	if a := app.Post(t, "/v1/launch", body(t, request)); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	} else if a.JSON(t, &order); len(order.Instances) != 3 {
		t.Fatalf("got %s", a.Body)
	}
	if a := app.Post(t, "/v1/launch", body(t, request)); a.Status != 200 {
		t.Errorf("again: got %d %s", a.Status, a.Body)
	}
	type shown struct {
		Description string   `json:"description"`
		ConfigDrive string   `json:"config_drive"`
		Tags        []string `json:"tags"`
	}
	for n, want := range []struct {
		description, drive, group string
		tags                      []string
	}{
		{"of the course ✓", "True", "apart", []string{"team:a", "web ✓"}},
		{"", "", "together", nil},
		{"of the course ✓", "True", "", []string{"team:a", "web ✓"}},
	} {
		i := order.Instances[n]
		var body struct{ Server shown }
		if _, err := nova.Get(t.Context(), nova.ServiceURL("servers", i.ServerID), &body, nil); err != nil {
			t.Fatal(err)
		}
		own := slices.DeleteFunc(body.Server.Tags, func(tag string) bool {
			return strings.HasPrefix(tag, "cloudfn-") || tag == i.ID.String()
		})
		slices.Sort(own)
		if len(own) != len(want.tags) || len(own) > 0 && !reflect.DeepEqual(own, want.tags) ||
			body.Server.ConfigDrive != want.drive ||
			want.description != "" && body.Server.Description != want.description {
			t.Errorf("server %d is %+v, want %+v", n, body.Server, want)
		}
		for name, id := range groups {
			if isIn := slices.Contains(p.ServerGroupMembers(t, id), i.ServerID); isIn != (name == want.group) {
				t.Errorf("server %d is in %s: %t", n, name, isIn)
			}
		}
	}
}

// TestOptionsInHash: what says nothing does not make another request of it.
func TestOptionsInHash(t *testing.T) {
	t.Parallel()
	plain := launchRequest{Name: "a"}
	empty, tagged, own := plain, plain, plain
	empty.Options = Options{
		Tags: []string{}, Description: new(""), ConfigDrive: new(false), ServerGroup: new(""), Hints: hints{},
	}
	tagged.Tags = []string{"a"}
	own.Instances = []launchInstance{{Options: Options{Tags: []string{}}}}
	none := own
	none.Instances = []launchInstance{{}}
	if plain.hash() != empty.hash() {
		t.Error("options that say nothing change the hash")
	}
	if plain.hash() == tagged.hash() || own.hash() == none.hash() {
		t.Error("tags do not change the hash")
	}
}
