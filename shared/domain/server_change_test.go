package domain

import (
	"slices"
	"testing"
)

// TestServerChangeOn: only what differs is changed, and nothing of cloudfn's is.
func TestServerChangeOn(t *testing.T) {
	t.Parallel()
	const own = "cloudfn-order:019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"
	text := func(s string) *string { return &s }
	s := Server{
		Name: "web", Description: "d", Metadata: map[string]string{"a": "1", "b": "2"}, Tags: []string{own, "x", "Web"},
	}
	u, faults := ServerChange{
		Name: text("web"), Description: text(""), Tags: []string{"web", "x"},
		Metadata: map[string]*string{"a": text("1"), "b": nil, "c": text("3"), "d": nil},
	}.On(s)
	if len(faults) > 0 || u.Name != nil || u.Description == nil || !slices.Equal(u.Unset, []string{"b"}) ||
		len(u.Set) != 1 || u.Set["c"] != "3" || !slices.Equal(u.Untag, []string{"Web"}) ||
		!slices.Equal(u.Tag, []string{"web"}) {
		t.Errorf("got %+v, %v", u, faults)
	}
	after := u.Apply(s)
	if after.Name != "web" || after.Description != "" || len(after.Metadata) != 2 || after.Metadata["c"] != "3" ||
		!slices.Equal(after.Tags, []string{own, "x", "web"}) || len(s.Metadata) != 2 || s.Metadata["b"] != "2" {
		t.Errorf("got %+v of %+v", after, s)
	}
	if u, faults := (ServerChange{Tags: []string{own, "x", "Web"}}).On(s); !u.IsEmpty() || len(faults) > 0 {
		t.Errorf("as it is: got %+v, %v", u, faults)
	}
	for field, c := range map[string]ServerChange{
		"tags[1]":    {Tags: []string{own, own + " "}},
		"metadata.b": {Metadata: map[string]*string{"b": nil}},
	} {
		_, faults := c.On(Server{Tags: []string{own}, Metadata: map[string]string{"b": "", "B": ""}})
		if got := named(faults); got != field {
			t.Errorf("got %q, want %s", got, field)
		}
	}
}
