package openstack

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// The answers here are those of Zed, cut short; what the real ones say is tested with a dry run of functions/launch.

func TestFreeAddresses(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /network/v2.0/network-ip-availabilities", 200, `{"network_ip_availabilities":[
		{"network_id":"n1","subnet_ip_availability":[
			{"ip_version":4,"used_ips":3,"total_ips":5},{"ip_version":4,"used_ips":1,"total_ips":2},{"ip_version":6,"used_ips":1,"total_ips":18446744073709551614}]},
		{"network_id":"n2","subnet_ip_availability":[{"ip_version":4,"used_ips":9,"total_ips":5}]}]}`)
	got, err := s.session(t).FreeAddresses(t.Context(), []string{"n1", "n2", "n3"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[int]float64{"n1": {4: 3, 6: 18446744073709551613}, "n2": {4: 0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if q := s.to("/network/v2.0/network-ip-availabilities")[0].URL.Query()["network_id"]; len(q) != 3 {
		t.Errorf("it was asked for %v", q)
	}
}

func TestRoom(t *testing.T) {
	t.Parallel()
	const hosts = `{"provider_summaries":{
		"a":{"resources":{"VCPU":{"capacity":10,"used":3},"MEMORY_MB":{"capacity":1000,"used":0},"DISK_GB":{"capacity":50,"used":1}}},
		"b":{"resources":{"VCPU":{"capacity":10,"used":10},"MEMORY_MB":{"capacity":1000,"used":0}}},
		"c":{"resources":{"VCPU":{"capacity":4,"used":0},"MEMORY_MB":{"capacity":300,"used":400}}},
		"d":{"resources":{"VCPU":{"capacity":4,"used":0},"MEMORY_MB":{"capacity":300,"used":0}}},
		"storage":{"resources":{"DISK_GB":{"capacity":5000,"used":0}}}}}`
	flavor := domain.Flavor{ID: "f", VCPUs: 2, RAMMB: 100, DiskGB: 10}
	for name, tc := range map[string]struct {
		specs  string
		status int
		want   int
		code   apperr.Code
	}{
		"plain":              {`{"extra_specs":{"hw:mem_page_size":"large","trait:X":"required"}}`, 200, 3 + 2, ""},
		"other resources":    {`{"extra_specs":{"resources:CUSTOM_METAL":"1"}}`, 200, 0, apperr.Unsupported},
		"numbered ones":      {`{"extra_specs":{"resources1:VGPU":"1"}}`, 200, 0, apperr.Unsupported},
		"dedicated CPUs":     {`{"extra_specs":{"hw:cpu_policy":"dedicated"}}`, 200, 0, apperr.Unsupported},
		"policy says no":     {`{"extra_specs":{}}`, 403, 0, apperr.Forbidden},
		"no such flavor":     {``, 200, 0, apperr.NotFound},
		"placement is away":  {`{"extra_specs":{}}`, 503, 0, apperr.Unavailable},
		"a senseless answer": {`{"extra_specs":{}}`, 418, 0, apperr.BadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			session := s.session(t)
			list := strings.TrimSuffix(strings.TrimPrefix(s.catalog("compute", "placement"), `{"catalog":`), "}")
			session.cloud.catalogs.Add("p1", catalogOf(t, list))
			if tc.specs != "" {
				s.answer("GET /compute/flavors/f/os-extra_specs", 200, tc.specs)
			}
			s.answer("GET /placement/allocation_candidates", tc.status, hosts)
			got, err := session.Room(t.Context(), flavor)
			if got != tc.want || apperr.CodeOf(err) != tc.code {
				t.Errorf("got %d %v, want %d %s", got, err, tc.want, tc.code)
			}
			for _, call := range s.to("/placement/allocation_candidates") {
				if v := call.Header.Get("OpenStack-API-Version"); v != "placement "+placementSummaries {
					t.Errorf("the version is %q", v)
				}
			}
		})
	}
	// A cloud without Placement in its catalog.
	s := newStub(t)
	s.answer("GET /compute/flavors/f/os-extra_specs", 200, `{"extra_specs":{}}`)
	if _, err := s.session(t).Room(t.Context(), flavor); apperr.CodeOf(err) != apperr.Unsupported {
		t.Errorf("without placement: %v", err)
	}
}

func TestKeyPairCalls(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("POST /compute/os-keypairs", 200,
		`{"keypair":{"name":"k","fingerprint":"aa:bb","public_key":"ssh-ed25519 x"}}`)
	got, err := s.session(t).ImportKeyPair(t.Context(), "k", "ssh-ed25519 x")
	if err != nil || got.Fingerprint != "aa:bb" {
		t.Errorf("got %+v %v", got, err)
	}
	want := map[string]any{"name": "k", "public_key": "ssh-ed25519 x"}
	if diff := cmp.Diff(want, bodyOf(t, s.to("/compute/os-keypairs")[0])["keypair"]); diff != "" {
		t.Error(diff)
	}
	for status, want := range map[int]apperr.Code{202: "", 404: "", 403: apperr.Forbidden, 503: apperr.Unavailable} {
		s := newStub(t)
		s.answer("DELETE /compute/os-keypairs/k", status, "")
		if err := s.session(t).DeleteKeyPair(t.Context(), "k"); apperr.CodeOf(err) != want {
			t.Errorf("%d: got %v", status, err)
		}
	}
	for status, want := range map[int]apperr.Code{
		202: "", 404: apperr.NotFound, 409: apperr.Conflict, 503: apperr.Unavailable,
	} {
		s := newStub(t)
		s.answer("POST /compute/servers/s1/action", status, "")
		if err := s.session(t).StopServer(t.Context(), "s1"); apperr.CodeOf(err) != want {
			t.Errorf("stop, %d: got %v", status, err)
		}
	}
}
