package openstack

import (
	"slices"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestHostsOfACellThatIsDown: Nova shows their names at 2.69 and later; before it left them out, as if deleted.
func TestHostsOfACellThatIsDown(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/{$}", 200, `{"version":{"id":"v2.1","status":"CURRENT","min_version":"2.1","version":"2.93"}}`)
	s.answer("GET /compute/os-services", 200, `{"services":[
		{"id":"s","binary":"nova-compute","host":"a","zone":"nova","status":"enabled","state":"up"},
		{"binary":"nova-compute","host":"b","status":"UNKNOWN"}]}`)
	s.answer("GET /compute/os-hypervisors/detail", 200, `{"hypervisors":[{"id":"h","service":{"host":"a"}}]}`)
	hosts, err := s.session(t).ComputeHosts(t.Context())
	if err != nil || len(hosts) != 2 || hosts[0].CellDown || !hosts[1].CellDown || hosts[1].IsUp || hosts[1].IsEnabled {
		t.Errorf("got %+v: %v", hosts, err)
	}
	if calls := s.to("/compute/os-services"); len(calls) != 1 ||
		calls[0].Header.Get("OpenStack-API-Version") != "compute 2.69" {
		t.Errorf("%d calls: %v", len(calls), calls[0].Header)
	}
}

// TestHostReports leaves out disabled hosts, those of a zone where all are, and other services.
func TestHostReports(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/os-availability-zone/detail", 200, `{"availabilityZoneInfo":[
		{"zoneName":"internal","hosts":{"control":{"nova-conductor":{"available":true,"active":true,"updated_at":null}}}},
		{"zoneName":"nova","hosts":{"a":{"nova-compute":{
			"available":false,"active":true,"updated_at":"2026-01-02T03:04:05.000000"}}}},
		{"zoneName":"closed","hosts":null}]}`)
	hosts, err := s.session(t).HostReports(t.Context())
	if err != nil || len(hosts) != 1 || hosts[0].Name != "a" || hosts[0].Zone != "nova" || hosts[0].IsUp ||
		!hosts[0].IsEnabled || !hosts[0].IsBrief || hosts[0].SeenAt.Format("15:04:05") != "03:04:05" {
		t.Errorf("got %+v: %v", hosts, err)
	}
}

// TestDescribeHosts reads one page in one call, however many there are, and begins again when its marker was deleted.
func TestDescribeHosts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status  int
		answer  string
		marker  string
		next    string
		servers []int // on a and b; -1 = not read
	}{
		"a page": {
			status: 200, next: "h2", servers: []int{2, -1},
			answer: `{"hypervisors":[{"id":"h1","service":{"host":"a"},"servers":[{"uuid":"1"},{"uuid":"2"}]},
				{"id":"h2","service":{"host":"a"},"servers":[{"uuid":"2"}]}],"hypervisors_links":[{"rel":"next"}]}`,
		},
		"the next one": {
			status: 200, marker: "h2", next: "h3", servers: []int{-1, 0},
			answer: `{"hypervisors":[{"id":"h3","service":{"host":"b"}}]}`,
		},
		"after the last one": {status: 200, answer: `{"hypervisors":[]}`, marker: "h3", servers: []int{-1, -1}},
		"its marker was deleted": {
			status: 400, answer: `{"badRequest":{"message":"Marker not found"}}`, marker: "h9", servers: []int{-1, -1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /compute/os-hypervisors/detail", tc.status, tc.answer)
			hosts := []domain.ComputeHost{
				{Name: "a", IsBrief: true, Attributes: map[string]string{}},
				{Name: "b", IsBrief: true, Attributes: map[string]string{}},
			}
			next, err := s.session(t).DescribeHosts(t.Context(), hosts, tc.marker)
			var got []int
			for _, h := range hosts {
				n := h.Servers
				if h.IsBrief {
					n = -1
				}
				got = append(got, n)
			}
			calls := s.to("/compute/os-hypervisors/detail")
			if err != nil || next != tc.next || !slices.Equal(got, tc.servers) || len(calls) != 1 ||
				calls[0].URL.Query().Get("marker") != tc.marker || calls[0].URL.Query().Get("limit") != "1000" {
				t.Errorf("got %v, the next page is after %q, %d calls: %v", got, next, len(calls), err)
			}
		})
	}
}
