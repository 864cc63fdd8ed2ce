package openstack

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestOddServersDoNotStopAPage: each of them is shown as far as it can be.
func TestOddServersDoNotStopAPage(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/servers/detail", 200, `{"servers":[
		{"id":"nulls","name":null,"status":null,"created":null,"updated":null,"OS-EXT-AZ:availability_zone":null,"key_name":null,"tags":null,"addresses":null,"flavor":null,"image":null,"fault":null,"tenant_id":null,"OS-SRV-USG:launched_at":null},
		{"id":"volume","status":"ACTIVE","image":"","flavor":{},"addresses":{"b":[{"addr":"10.0.0.2","version":4,"OS-EXT-IPS:type":"fixed"}],"a":[],"A":[{"addr":"fe80::1","version":6}]}},
		{"id":"bare"},
		{"id":"failed","OS-SRV-USG:launched_at":"","fault":{"code":500,"message":"No valid\nhost","created":null}},
		{"id":"new","status":"BREWING","created":"2026-01-02T03:04:05Z","image":{"id":"i1","links":[]},"some_new_thing":{"x":[1]}}],
		"servers_links":[{"rel":"next","href":"x"}]}`)
	page, more, err := s.session(t).Servers(t.Context(), domain.ServerQuery{Limit: 5})
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := []domain.Server{
		{ID: "nulls", Addresses: []domain.Address{}},
		{
			ID: "volume", Status: "ACTIVE", Addresses: []domain.Address{
				{Network: "A", IP: "fe80::1", Version: 6}, {Network: "b", IP: "10.0.0.2", Version: 4, Type: "fixed"},
			},
		},
		{ID: "bare", Addresses: []domain.Address{}},
		{ID: "failed", Addresses: []domain.Address{}, Fault: &domain.Fault{Code: 500, Message: "No valid host"}},
		{
			ID: "new", Status: "BREWING", Addresses: []domain.Address{}, Image: &domain.ImageRef{ID: "i1"},
			CreatedAt: created, UpdatedAt: created,
		},
	}
	if diff := cmp.Diff(want, page); err != nil || !more || diff != "" {
		t.Errorf("%v, more %t, %s", err, more, diff)
	}
}

// TestPagesDoNotMix when many are read concurrently.
func TestPagesDoNotMix(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.mux.HandleFunc("GET /compute/servers/detail", func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("name")
		_, _ = io.WriteString(w, `{"servers":[`+strings.Repeat(`{"id":"`+name+`","image":{"id":"`+name+`"}},`,
			200)+`{"id":"`+name+`"}]}`)
	})
	session := s.session(t)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			name := strings.Repeat(string(rune('a'+n)), 50*n+1)
			var pages [][]domain.Server
			for range 5 {
				page, _, err := session.Servers(t.Context(), domain.ServerQuery{Limit: 1000, Name: name})
				if err != nil || len(page) != 201 {
					t.Errorf("got %d servers, %v", len(page), err)
				}
				pages = append(pages, page)
			}
			for _, server := range slices.Concat(pages...) {
				if server.ID != name || server.Image != nil && server.Image.ID != name {
					t.Errorf("%.5s: got %.50q", name, server.ID)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestServersAsksForWhatIsMeant(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		q    domain.ServerQuery
		want map[string][]string
	}{
		"nothing": {domain.ServerQuery{Limit: 7}, map[string][]string{"limit": {"7"}}},
		"a name": {
			domain.ServerQuery{Limit: 1, Name: "a.b*(c|d)^$+[é] x&y"}, map[string][]string{
				"limit": {"1"}, "name": {`a\.b\*\(c[|]d\)\^\$\+\[é\] x&y`},
			},
		},
		"everything": {
			domain.ServerQuery{Limit: 1, Marker: "m", Status: "ACTIVE", Tags: []string{"t1", "t2"}},
			map[string][]string{"limit": {"1"}, "marker": {"m"}, "status": {"ACTIVE"}, "tags-any": {"t1,t2"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /compute/servers/detail", 200, `{"servers":[]}`)
			page, more, err := s.session(t).Servers(t.Context(), tc.q)
			if err != nil || more || page == nil || len(page) != 0 {
				t.Errorf("got %v %t %v", page, more, err)
			}
			if diff := cmp.Diff(tc.want,
				map[string][]string(s.to("/compute/servers/detail")[0].URL.Query())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestImageRef(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`""`: "", `null`: "", `{}`: "", `{"id":null}`: "", `{"id":null,"links":[{"rel":"bookmark"}]}`: "",
		`{"id" : "i-1"}`: "i-1", `{"id":"i-1"}`: "i-1",
		`{"links":[{"rel":"bookmark","href":"http://x/images/i-1"}],"id": "i-1"}`: "i-1", `5`: "",
	} {
		var got imageRef
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.ID != want {
			t.Errorf("%s: got %q %v", text, got.ID, err)
		}
	}
}

// TestUserDataArrivesAsItIs, also when it looks like base64 already.
func TestUserDataArrivesAsItIs(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a script": "#!/bin/sh\necho ✓", "base64": "aGVsbG8=", "base64 without an end": "aGVsbG8h", "none": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("POST /compute/servers", 202, `{"server":{"id":"s1"}}`)
			spec := domain.LaunchSpec{
				FlavorID: "f", ImageID: "i", NetworkIDs: []string{"n1", "n2"}, KeyName: "k",
				SecurityGroups: []string{"g"}, Zone: "z", Metadata: map[string]string{"m": "v"},
			}
			id, err := s.session(t).CreateServer(t.Context(), spec, "web-1", domain.Secret(text), []string{"t1", "t2"})
			if err != nil || id != "s1" {
				t.Fatalf("got %q %v", id, err)
			}
			call := s.to("/compute/servers")[0]
			want := map[string]any{
				"name": "web-1", "flavorRef": "f", "imageRef": "i", "key_name": "k", "availability_zone": "z",
				"metadata": map[string]any{"m": "v"}, "tags": []any{"t1", "t2"},
				"networks": []any{map[string]any{"uuid": "n1"}, map[string]any{"uuid": "n2"}}, "security_groups": []any{
					map[string]any{"name": "g"},
				},
			}
			if text != "" {
				want["user_data"] = base64.StdEncoding.EncodeToString([]byte(text))
			}
			if diff := cmp.Diff(want, bodyOf(t, call)["server"]); diff != "" ||
				call.Header.Get("X-Openstack-Nova-Api-Version") != computeCreateTags {
				t.Errorf("%v %s", call.Header, diff)
			}
		})
	}
}

// TestVolumesOfServer: a server gets volumes beside its disk in its create call, or later. They stay when it is deleted,
// and those that several servers may have take a newer microversion.
func TestVolumesOfServer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		isMultiattach     bool
		created, attached string
	}{{false, computeCreateTags, computeBase}, {true, computeMultiattach, computeMultiattach}} {
		s := newStub(t)
		s.answer("POST /compute/servers", 202, `{"server":{"id":"s1"}}`)
		s.answer("POST /compute/servers/s1/os-volume_attachments", 200, `{"volumeAttachment":{"id":"v"}}`)
		v := domain.ServerVolume{ID: "v", IsMultiattach: tc.isMultiattach}
		spec := domain.LaunchSpec{FlavorID: "f", ImageID: "i", Volumes: []domain.ServerVolume{v}}
		if _, err := s.session(t).CreateServer(t.Context(), spec, "web-1", "", nil); err != nil {
			t.Fatal(err)
		}
		if err := s.session(t).AttachVolume(t.Context(), "s1", v); err != nil {
			t.Fatal(err)
		}
		create, attach := s.to("/compute/servers")[0], s.to("/compute/servers/s1/os-volume_attachments")[0]
		body, _ := bodyOf(t, create)["server"].(map[string]any)
		want := []any{
			map[string]any{
				"source_type": "image", "uuid": "i", "boot_index": 0.0, "destination_type": "local",
				"delete_on_termination": true,
			},
			map[string]any{
				"source_type": "volume", "uuid": "v", "boot_index": -1.0, "destination_type": "volume",
				"delete_on_termination": false,
			},
		}
		const header = "X-Openstack-Nova-Api-Version"
		if diff := cmp.Diff(want, body["block_device_mapping_v2"]); diff != "" || body["imageRef"] != "i" ||
			create.Header.Get(header) != tc.created || attach.Header.Get(header) != tc.attached {
			t.Errorf("%+v: %s and %s, %s", tc, create.Header.Get(header), attach.Header.Get(header), diff)
		}
	}
}

// TestCreateWithoutAnID: Nova said yes, and it is not known to what.
func TestCreateWithoutAnID(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{}`, `{"server":{}}`, `{"server":{"id":""}}`, `{"server":null}`} {
		s := newStub(t)
		s.answer("POST /compute/servers", 202, body)
		if err := create(t.Context(), s.session(t)); apperr.CodeOf(err) != apperr.BadGateway {
			t.Errorf("%s: got %v", body, err)
		}
	}
}

func TestDeleteServer(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]apperr.Code{
		204: "", 404: "", 409: apperr.Conflict, 503: apperr.Unavailable, 403: apperr.Forbidden,
	} {
		s := newStub(t)
		s.answer("DELETE /compute/servers/s1", status, "")
		if err := s.session(t).DeleteServer(t.Context(), "s1"); apperr.CodeOf(err) != want {
			t.Errorf("%d: got %v", status, err)
		}
	}
}

// TestIDsStayInTheirPlace: an id that is a path leads to no other resource.
func TestIDsStayInTheirPlace(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	session := s.session(t)
	for _, id := range []string{"../os-keypairs", "a/b", "a?x=1", "a#b", "a%2Fb"} {
		_, err1 := session.Server(t.Context(), id)
		_, err2 := session.Image(t.Context(), id)
		_, err3 := session.Actions(t.Context(), id)
		if apperr.CodeOf(err1) != apperr.NotFound || apperr.CodeOf(err2) != apperr.NotFound ||
			apperr.CodeOf(err3) != apperr.NotFound {
			t.Errorf("%s: got %v, %v, %v", id, err1, err2, err3)
		}
	}
	for _, r := range s.calls[1:] {
		if r.URL.RawQuery != "" || r.URL.Fragment != "" {
			t.Errorf("it got %s", r.URL)
		}
	}
}

// TestPattern matches names that contain the text, although Nova changes the pattern, and takes none of it for syntax.
func TestPattern(t *testing.T) {
	t.Parallel()
	for text, others := range map[string][]string{
		"a|b": {"a", "b", `a\`}, "a.b": {"axb"}, "[a]": {"a"}, `a\`: {"a"}, "(": {")"}, "a*": {"b"}, "^a$": {"a"},
		"🚀|b": {"b", "🚀"}, "é": {"e"},
	} {
		atNova := strings.ReplaceAll(pattern(text), "|", `\|`) // _safe_regex_mysql in nova/db/main/api.py
		if strings.ContainsFunc(atNova, func(r rune) bool { return r > maxThreeBytes }) {
			t.Errorf("%s: the pattern %s has characters that old databases reject", text, atNova)
		}
		if matches, err := regexp.MatchString(atNova, "x"+text+"y"); err != nil || !matches {
			t.Errorf("%s: the pattern %s does not match it: %v", text, atNova, err)
		}
		for _, other := range others {
			if matches, _ := regexp.MatchString(atNova, other); matches {
				t.Errorf("%s: the pattern %s matches %s", text, atNova, other)
			}
		}
	}
}

// TestRebuildAsItIsAskedFor: a server that boots from a volume needs a newer Nova, and one that has none of it says so.
func TestRebuildAsItIsAskedFor(t *testing.T) {
	t.Parallel()
	for fromVolume, version := range map[bool]string{false: "2.57", true: "2.93"} {
		s := newStub(t)
		s.answer("POST /compute/servers/id/action", 202, "")
		r := domain.RebuildRequest{
			ID: uuid.New(), ImageID: "i1", UserData: "#cloud-config", Metadata: map[string]string{"a": "b"},
		}
		if err := s.session(t).RebuildServer(t.Context(), "id", r, fromVolume); err != nil {
			t.Fatal(err)
		}
		sent := s.to("/compute/servers/id/action")[0]
		want := map[string]any{
			"rebuild": map[string]any{
				"imageRef": "i1", "user_data": "I2Nsb3VkLWNvbmZpZw==", "metadata": map[string]any{"a": "b"},
			},
		}
		if diff := cmp.Diff(want, bodyOf(t, sent)); diff != "" ||
			sent.Header.Get("X-Openstack-Nova-Api-Version") != version {
			t.Errorf("%s %v", diff, sent.Header)
		}
	}
	s := newStub(t)
	s.answer("POST /compute/servers/id/action", 406,
		`{"computeFault":{"message":"Version 2.93 is not supported by the API. Minimum is 2.1 and maximum is 2.79."}}`)
	err := s.session(t).RebuildServer(t.Context(), "id", domain.RebuildRequest{ImageID: "i1"}, true)
	if apperr.CodeOf(err) != apperr.Unsupported || !strings.Contains(apperr.As(err).Message, "2.93") {
		t.Errorf("an older Nova: %v", err)
	}
}
