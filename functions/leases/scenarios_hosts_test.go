package leases

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func contains(body []byte, text string) bool { return bytes.Contains(body, []byte(text)) }

// conflict checks that the refusal names a free time at which the same request then succeeds.
func (f fixture) conflict(t *testing.T, a testkit.Answer, again func(start string) testkit.Answer) {
	t.Helper()
	refused(t, a, http.StatusConflict, "start")
	free := allowed(t, a, "start")
	if len(free) != 1 {
		t.Fatalf("allowed is %v in %s", free, a.Body)
	}
	if b := again(free[0]); b.Status != http.StatusCreated && b.Status != http.StatusOK {
		t.Errorf("at the free time %s: %d %s", free[0], b.Status, b.Body)
	}
}

// TestLongHostScenarios are Blazar's tests of host reservations.
func TestLongHostScenarios(t *testing.T) {
	t.Parallel()
	play(t, []scenario{
		{"create reservation with min over max, and zero hosts", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 2)
			for hosts, field := range map[string]string{
				`, "min": 2, "max": 1`: "max", `, "min": 0`: "min", `, "max": 0`: "max", `, "min": -1`: "min",
				`, "min": 1.5`: "min",
				`, "instance_id": "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"`: "instance_id",
			} {
				a := f.Post(t, "/v1/leases", ofHosts("now", "PT1H", hosts))
				refused(t, a, http.StatusBadRequest, "reservations[0]."+field)
			}
		}},
		{"create reservation without enough hosts", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 2)
			a := f.Post(t, "/v1/leases", ofHosts("now", "PT1H", `, "min": 3`))
			refused(t, a, http.StatusUnprocessableEntity, "reservations[0].min")
			f.exec(t, "update nodes set is_up = false where name = 'n001'")
			again := func(start string) testkit.Answer { // when it is expected back
				return f.Post(t, "/v1/leases", ofHosts(start, "PT1H", `, "min": 2`))
			}
			f.conflict(t, again("now"), again)
			f.exec(t, "delete from leases")
			f.exec(t, "update nodes set pool = 'leaving'")
			a = f.Post(t, "/v1/leases", ofHosts("now", "PT1H", ""))
			refused(t, a, http.StatusUnprocessableEntity, "")
			f.nothing(t)
		}},
		{"create reservation by sizes", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 2)
			f.exec(t, "update nodes set vcpus = 8, ram_mb = 8192, disk_gb = 100 where name = 'n001'")
			f.make(t, ofHosts("now", "PT1H", `, "vcpus": 32, "ram_mb": 65536, "disk_gb": 1000`))
			for _, hosts := range []string{`, "vcpus": 33`, `, "ram_mb": 65537`, `, "disk_gb": 1001`} {
				a := f.Post(t, "/v1/leases", ofHosts("now", "PT1H", hosts))
				refused(t, a, http.StatusUnprocessableEntity, "reservations[0].min")
			}
			if n := testkit.Scalar[string](t, f.conn, "select node from allocations"); n != "n002" {
				t.Errorf("it has %s", n)
			}
			f.make(t, ofHosts("now", "PT1H", "")) // the smaller one
		}},
		{"create reservation by zone and region", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 2)
			f.exec(t, "update nodes set zone = 'other', region = 'there' where name = 'n001'")
			f.make(t, ofHosts("now", "PT1H", `, "zone": "other", "region": "there"`))
			for hosts, field := range map[string]string{`, "zone": "moon"`: "zone", `, "region": "moon"`: "region"} {
				a := f.Post(t, "/v1/leases", ofHosts("now", "PT1H", hosts))
				refused(t, a, http.StatusBadRequest, "reservations[0]."+field)
				if len(allowed(t, a, "reservations[0]."+field)) == 0 {
					t.Errorf("nothing is allowed: %s", a.Body)
				}
			}
		}},
		{"create reservation by traits", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 2)
			f.exec(t, "update nodes set traits = traits || '{CUSTOM_GPU}' where name = 'n002'")
			f.make(t, ofHosts("now", "PT1H", `, "traits": ["CUSTOM_GPU", "HW_CPU_X86_AVX2"]`))
			a := f.Post(t, "/v1/leases", ofHosts("now", "PT1H", `, "traits": ["HW_CPU_X86_AVX2", "CUSTOM_FPGA"]`))
			refused(t, a, http.StatusBadRequest, "reservations[0].traits[1]")
			if got := allowed(t, a, "reservations[0].traits[1]"); !slices.Equal(got,
				[]string{"CUSTOM_GPU", "HW_CPU_X86_AVX2"}) {
				t.Errorf("allowed is %v", got)
			}
		}},
		{
			"create reservation by capabilities, scoped and not, with each kind of operator", nil,
			func(t *testing.T, f fixture) {
				f.hosts(t, 2)
				f.exec(t, `update nodes set attributes = '{"hypervisor_type": "QEMU", "cpu_info:topology:cores": "8",
					"cpu_info:vendor": "Intel", "cpu_info:features": "[\"aes\",\"avx2\"]"}' where name = 'n002'`)
				f.exec(t, "update nodes set traits = traits || '{CUSTOM_GPU}' where name = 'n002'")
				for _, wanted := range []string{
					`"capabilities:cpu_info:topology:cores >= 8"`,
					`"cpu_info:topology:cores <or> 4 <or> 8"`,
					`"hw:cpu_features <all-in> aes avx2"`, `"cpu_info:features <in> aes"`, `"hw:cpu_vendor = intel"`,
					`"vcpus >= 32", "trait:CUSTOM_GPU = required", "hypervisor_type s== QEMU"`,
				} {
					made := f.make(t, ofHosts("now", "PT1H", `, "capabilities": [`+wanted+`]`))
					if n := testkit.Scalar[string](t, f.conn, "select node from allocations"); n != "n002" {
						t.Errorf("%s: it has %s", wanted, n)
					}
					if got := made.Reservations[0].Capabilities; len(got) == 0 || !contains([]byte(wanted), got[0]) {
						t.Errorf("%s: shown are %q", wanted, got)
					}
					f.Do(t, "DELETE", path(made), "")
				}
				none := ofHosts("now", "PT1H", `, "capabilities": ["hypervisor_type s!= QEMU"]`)
				refused(t, f.Post(t, "/v1/leases", none), http.StatusUnprocessableEntity, "reservations[0].min")
			},
		},
		{"create reservation by capabilities that do not parse, or are unknown", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			for wanted, position := range map[string]string{
				"hypervisor_type >= many": "at character 20", "hypervisor_type <or> QEMU <or>": "at character 31",
				"hypervisor_type => 1": "at character 17", "hypervisor_type": "at character 16",
				"": "at character 1", "hw:cpu_policy = dedicated": "at character 1",
				"color = red": "attribute", "trait:CUSTOM_FPGA = required": "trait",
			} {
				a := f.Post(t, "/v1/leases",
					ofHosts("now", "PT1H", fmt.Sprintf(`, "capabilities": ["vcpus > 1", %q]`, wanted)))
				refused(t, a, http.StatusBadRequest, "reservations[0].capabilities[1]")
				if !contains(a.Body, position) {
					t.Errorf("%s: the answer does not say where: %s", wanted, a.Body)
				}
				got := allowed(t, a, "reservations[0].capabilities[1]")
				switch {
				case position == "attribute" && !slices.Equal(got,
					[]string{"disk_gb", "hypervisor_type", "ram_mb", "vcpus"}),
					position == "trait" && !slices.Equal(got, []string{"HW_CPU_X86_AVX2"}):
					t.Errorf("%s: allowed is %v", wanted, got)
				}
			}
			a := f.Post(t, "/v1/leases", ofHosts("now", "PT1H", `, "capabilities": {"vcpus": "> 1"}`))
			refused(t, a, http.StatusBadRequest, "reservations[0].capabilities")
		}},
		{"create reservation by flavors", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 3)
			if made := f.make(t, ofHosts("now", "PT1H", "")); len(made.Reservations[0].Flavors) == 0 {
				t.Errorf("it has no flavors: %+v", made)
			}
			a := f.Post(t, "/v1/leases", ofHosts("now", "PT1H", `, "flavors": ["none-such"]`))
			refused(t, a, http.StatusBadRequest, "reservations[0].flavors[0]")
			large := fmt.Sprintf(`, "flavors": [%q]`, f.project.TooLargeFlavor(t))
			a = f.Post(t, "/v1/leases", ofHosts("now", "PT1H", large))
			refused(t, a, http.StatusBadRequest, "reservations[0].flavors[0]")
		}},
		{"create overlapping and back-to-back reservations", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			now := time.Now()
			at := func(d time.Duration) string { return now.Add(d).UTC().Truncate(time.Second).Format(time.RFC3339) }
			f.make(t, ofHosts(at(2*time.Hour), "PT2H", ""))
			for start, duration := range map[string]string{
				at(2 * time.Hour): "PT2H", at(time.Hour): "PT1H1S", at(3 * time.Hour): "PT5H",
				at(4*time.Hour - time.Second): "PT1S", at(10 * time.Minute): "P1D",
			} {
				refused(t, f.Post(t, "/v1/leases", ofHosts(start, duration, "")), http.StatusConflict, "start")
			}
			f.make(t, ofHosts(at(4*time.Hour), "PT1H", ""))
			f.make(t, ofHosts("now", "PT1H", ""))
		}},
		{
			"create reservation in the cleaning time",
			map[string]string{"LEASES_CLEANING": "30m"},
			func(t *testing.T, f fixture) {
				f.hosts(t, 1)
				f.make(t, ofHosts(in(time.Hour), "PT1H", ""))
				again := func(start string) testkit.Answer {
					return f.Post(t, "/v1/leases", ofHosts(start, "PT1H", ""))
				}
				f.conflict(t, again(in(2*time.Hour+29*time.Minute)), again)
				refused(t, f.Post(t, "/v1/leases", ofHosts("now", "PT40M", "")), http.StatusConflict, "start")
			},
		},
		{"several reservations: all or none", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 3)
			f.make(t, `{"name": "x", "duration": "PT1H", "reservations": [{"type": "host"}, {"type": "host"}]}`)
			a := f.Post(t, "/v1/leases", `{"name": "x", "duration": "PT1H", "reservations": [
				{"type": "host"}, {"type": "host"}]}`)
			refused(t, a, http.StatusConflict, "reservations[1].min")
			f.make(t, ofHosts("now", "PT1H", ""))
		}},
		{"another project's lease is absent", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			made := f.make(t, ofHosts(in(time.Hour), "PT1H", ""))
			stranger := f.server.As(testkit.BorrowProject(t).Token(t))
			absent, foreign := stranger.Get(t, path(Lease{ID: made.Reservations[0].ID})), stranger.Get(t, path(made))
			if absent.Status != http.StatusNotFound || foreign.Status != http.StatusNotFound {
				t.Errorf("got %d and %d", absent.Status, foreign.Status)
			}
		}},
	})
}
