//go:build bench

package bench

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	watchedNodes   = 500
	watchedServers = 20 // on each
	watchRounds    = 5
)

// TestNodes counts the calls to Nova and their bytes, and takes the time of one event of the whole function
// watch-nodes, in a process of its own with Postgres, for 500 hosts of a fake Nova: the sandbox has four. The peer are
// the two commands of python-openstackclient by which an admin sees the same.
func TestNodes(t *testing.T) {
	fake := newFakeCloud(t, 0)
	fake.hosts(t, watchedNodes, watchedServers)
	db := newRig(t)
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "watch-nodes", "DATABASE_URL": db.url, "HOST": "127.0.0.1", "EVENT_KEY": testkit.EventKey,
		"OS_AUTH_URL": fake.URL + "/v3", "OS_USERNAME": "watcher", "OS_PASSWORD": "secret",
		"OS_USER_DOMAIN_ID": "default", "OS_PROJECT_NAME": "admin", "OS_PROJECT_DOMAIN_ID": "default",
	})
	watch := func() { tick(t, p, "watch-nodes") }
	_, whole := fake.count(watch) // it logs in, once in 20 minutes, and reads the hypervisors
	_, _ = fake.count(watch)      // their next page, which is empty
	var requests, took, bytes []float64
	for range watchRounds {
		n, mb := fake.count(func() { took = append(took, timed(watch)) })
		requests, bytes = append(requests, float64(n)), append(bytes, mb)
	}
	_, theirs := fake.count(func() {
		fake.openstack(t, "compute", "service", "list")
		fake.openstack(t, "hypervisor", "list")
	})
	n := db.count("select count(*)::int from nodes where status = 'up' and servers = $1", watchedServers)
	if n != watchedNodes {
		t.Errorf("%d of %d hosts are up with their servers", n, watchedNodes)
	}
	if median(requests) > 2 {
		t.Errorf("%.0f calls a tick", median(requests))
	}
	name := fmt.Sprintf("watch %d nodes with %d servers each (fake Nova), ", watchedNodes, watchedServers)
	compare("14a", name+"calls a tick : 2", median(requests), 2, showCount, atMost(1))
	compare("14b", name+"time of a tick : a minute", median(took), ms(time.Minute), showMS, atMost(1))
	kb := func(mb float64) string { return fmt.Sprintf("%.0f kB", mb*1000) }
	compare("14c", name+"bytes of a tick : openstack compute service list and hypervisor list", median(bytes), theirs,
		kb, atMost(1.0/20))
	average := (whole + (ticksBetween-1)*median(bytes)) / ticksBetween
	compare("14d", name+"the average, with the servers on each node every five minutes : the same", average, theirs,
		kb, shown)
}

// ticksBetween is how many ticks there are from one that reads the hypervisors to the next one.
const ticksBetween = 5

// openstack runs a command of python-openstackclient against the fake.
func (f *fakeCloud) openstack(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("openstack", args...)
	cmd.Env = append(os.Environ(), "OS_AUTH_TYPE=v3password", "OS_AUTH_URL="+f.URL+"/v3", "OS_USERNAME=watcher",
		"OS_PASSWORD=secret", "OS_USER_DOMAIN_ID=default", "OS_PROJECT_NAME=admin", "OS_PROJECT_DOMAIN_ID=default",
		"OS_CLOUD=", "OS_IDENTITY_API_VERSION=3")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "compute-") < watchedNodes {
		t.Fatalf("openstack %v: %v: %.2000s", args, err, out)
	}
}

// cpuInfo is what libvirt says of a Cascade Lake processor, as Nova shows it before 2.28: a text.
var cpuInfo = `{"arch": "x86_64", "model": "Cascadelake-Server-noTSX", "vendor": "Intel", "topology": ` +
	`{"cells": 2, "sockets": 1, "cores": 16, "threads": 2}, "features": ["` + cpuFeatures + `"]}`

var cpuFeatures = strings.Join(strings.Fields(`
3dnowprefetch abm acpi adx aes amd-ssbd apic arat arch-capabilities avx avx2 avx512bw avx512cd avx512dq
avx512f avx512vl avx512vnni bmi1 bmi2 clflush clflushopt clwb cmov cmt cx16 cx8 dca de ds ds_cpl dtes64 erms
est f16c fma fpu fsgsbase fxsr ht ibrs-all intel-pt invpcid invtsc lahf_lm lm mbm_local mbm_total mca mce
md-clear mds-no mmx monitor movbe mpx msr mtrr nonstop_tsc nx osxsave pae pat pbe pcid pclmuldq pdcm pdpe1gb
pge pku pni popcnt pschange-mc-no pse pse36 rdctl-no rdrand rdseed rdtscp sep skip-l1dfl-vmentry smap smep smx
spec-ctrl ss ssbd sse sse2 sse4.1 sse4.2 ssse3 stibp syscall tm tm2 tsc tsc_adjust tsc-deadline tsx-ctrl vme
vmx x2apic xgetbv1 xsave xsavec xsaveopt xsaves xtpr`), `", "`)

// hosts serves so many hosts, each with so many servers.
func (f *fakeCloud) hosts(t *testing.T, hosts, servers int) {
	t.Helper()
	type object map[string]any
	services, driven, plain := make([]object, hosts), make([]object, hosts), make([]object, hosts)
	reports := object{}
	for i := range hosts {
		name := fmt.Sprintf("compute-%04d", i)
		on := make([]object, servers)
		for n := range on {
			on[n] = object{"uuid": fmt.Sprintf("%08d-0000-4000-8000-%012d", i, n), "name": "instance"}
		}
		services[i] = object{
			"id": fmt.Sprintf("%08d-1111-4000-8000-000000000000", i), "binary": "nova-compute", "host": name,
			"zone": "nova", "status": "enabled", "state": "up", "disabled_reason": nil, "forced_down": false,
		}
		reports[name] = object{"nova-compute": object{"available": true, "active": true}}
		shown := object{
			"hypervisor_hostname": name + ".example.com", "state": "up", "status": "enabled", "host_ip": "10.0.0.1",
			"hypervisor_type": "QEMU", "hypervisor_version": 7002000, "vcpus": 64, "memory_mb": 262144,
			"local_gb": 4000, "vcpus_used": 40, "memory_mb_used": 81920, "local_gb_used": 400, "free_ram_mb": 180224,
			"free_disk_gb": 3600, "current_workload": 0, "running_vms": servers, "disk_available_least": 3500,
			"service": object{"host": name, "id": i, "disabled_reason": nil},
		}
		driven[i], plain[i] = maps.Clone(shown), shown
		driven[i]["id"], driven[i]["servers"] = fmt.Sprintf("%08d-2222-4000-8000-000000000000", i), on
		driven[i]["cpu_info"] = json.RawMessage(cpuInfo)
		plain[i]["id"], plain[i]["cpu_info"] = i, cpuInfo
	}
	whole, err := json.Marshal(object{"hypervisors": driven})
	must(t, err)
	brief, err := json.Marshal(object{"hypervisors": plain})
	must(t, err)
	f.handle("GET /v3/{$}", func(w http.ResponseWriter, _ *http.Request) {
		f.send(w, fmt.Appendf(nil, `{"version": {"id": "v3.14", "status": "stable",
			"links": [{"rel": "self", "href": "%s/v3/"}]}}`, f.URL))
	})
	version := fmt.Appendf(nil, `{"version": {"id": "v2.1", "status": "CURRENT", "min_version": "2.1", "version": "2.93",
		"links": [{"rel": "self", "href": "%s/compute/"}]}}`, f.URL)
	for _, path := range []string{"GET /compute", "GET /compute/{$}"} {
		f.handle(path, func(w http.ResponseWriter, _ *http.Request) { f.send(w, version) })
	}
	f.handle("GET /compute/os-hypervisors/detail", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("marker"): // after the last one
			f.send(w, []byte(`{"hypervisors": []}`))
		case r.URL.Query().Has("with_servers"):
			f.send(w, whole)
		default:
			f.send(w, brief)
		}
	})
	now := func() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000000") }
	send := func(w http.ResponseWriter, body any) {
		text, err := json.Marshal(body)
		if err != nil {
			panic(err)
		}
		f.send(w, text)
	}
	f.handle("GET /compute/os-services", func(w http.ResponseWriter, r *http.Request) {
		isOld := r.Header.Get("X-OpenStack-Nova-API-Version") == "2.1"
		for i, s := range services {
			s["updated_at"] = now()
			if isOld {
				s["id"] = i
				delete(s, "forced_down")
			}
		}
		send(w, object{"services": services})
	})
	f.handle("GET /compute/os-availability-zone/detail", func(w http.ResponseWriter, _ *http.Request) {
		for _, host := range reports {
			host.(object)["nova-compute"].(object)["updated_at"] = now()
		}
		send(w, object{"availabilityZoneInfo": []object{
			{"zoneName": "nova", "zoneState": object{"available": true}, "hosts": reports},
		}})
	})
}
