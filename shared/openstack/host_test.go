package openstack

import (
	"testing"
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
