package leases

import (
	"bytes"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLeaseOfHosts books hosts, shows neither their names nor those of others, and says when more are free.
func TestLeaseOfHosts(t *testing.T) {
	t.Parallel()
	f := start(t, map[string]string{"LEASES_CLEANING": "10m"})
	refused(t, f.Post(t, "/v1/leases", ofHosts("now", "PT1H", "")), http.StatusUnprocessableEntity, "")
	refused(t, f.Get(t, "/v1/leases/availability?duration=PT1H"), http.StatusUnprocessableEntity, "")
	f.hosts(t, 2)
	flavor := testkit.Sandbox(t).Flavor
	made := f.make(t, ofHosts(in(time.Hour), "P1D", fmt.Sprintf(`, "min": 1, "max": 5, "flavors": [%q]`, flavor)))
	r := made.Reservations[0]
	if *r.Hosts != 2 || r.Min != 1 || r.Max != 5 || len(r.Flavors) != 1 || r.Flavors[0].Name != flavor ||
		made.Isolation != domain.IsolationUnproven || made.OnEnd != "shelve" ||
		!slices.Equal(made.Warnings, []string{warnUntested}) {
		t.Errorf("made %+v", made)
	}
	stored := testkit.Scalar[string](t, f.conn, `select (flavors->0->>'id') || ' ' || (flavors->0->>'name')
		from reservations`)
	if want := r.Flavors[0].ID + " " + flavor + "-" + r.ID.String()[:8]; stored != want {
		t.Errorf("its flavor is %s, want %s", stored, want)
	}
	if a := f.Get(t, "/v1/leases/"+made.ID.String()); strings.Contains(string(a.Body), "n001") {
		t.Errorf("the answer names hosts: %s", a.Body)
	}
	stranger := f.server.As(testkit.BorrowProject(t).Token(t))
	a := stranger.Post(t, "/v1/leases", ofHosts(in(2*time.Hour), "PT1H", ""))
	refused(t, a, http.StatusConflict, "start")
	refused(t, a, http.StatusConflict, "reservations[0].min")
	free := allowed(t, a, "start")
	if want := made.End.Add(10 * time.Minute).Format(time.RFC3339Nano); !slices.Equal(free, []string{want}) {
		t.Errorf("allowed is %v, want %s", free, want)
	}
	if a := stranger.Post(t, "/v1/leases", ofHosts(free[0], "PT1H", "")); a.Status != http.StatusCreated {
		t.Errorf("at the free time: %d %s", a.Status, a.Body)
	}
	var shown Lease
	f.exec(t, "insert into isolation (region, result) values ('RegionOne', 'unproven')")
	if f.Get(t, "/v1/leases/"+made.ID.String()).JSON(t, &shown); shown.Isolation != "unproven" ||
		!slices.Equal(shown.Warnings, []string{warnUnproven}) {
		t.Errorf("shown %+v", shown)
	}
	f.exec(t, "update isolation set result = 'proven'")
	shown = Lease{}
	if f.Get(t, "/v1/leases/"+made.ID.String()).JSON(t, &shown); shown.Isolation != "proven" || shown.Warnings != nil {
		t.Errorf("shown %+v", shown)
	}
	if a := f.Do(t, "DELETE", "/v1/leases/"+made.ID.String(), ""); a.Status != http.StatusOK {
		t.Errorf("cancelled: %d %s", a.Status, a.Body)
	}
	if a := f.Do(t, "DELETE", "/v1/leases/"+made.ID.String(), ""); a.Status != http.StatusOK {
		t.Errorf("cancelled again: %d %s", a.Status, a.Body)
	}
	refused(t, patch(t, f.Client, "/v1/leases/"+made.ID.String(), `{"name": "x"}`), http.StatusConflict, "")
	refused(t, f.Post(t, "/v1/leases/"+made.ID.String()+"/retry", ""), http.StatusConflict, "")
}

// allowed lists what an answer says would be right in a field.
func allowed(t *testing.T, a testkit.Answer, field string) []string {
	t.Helper()
	var problem struct {
		Errors []struct {
			Field   string
			Allowed []string
		}
	}
	a.JSON(t, &problem)
	for _, e := range problem.Errors {
		if e.Field == field {
			return e.Allowed
		}
	}
	return nil
}

// TestAvailability lists when hosts are free, the earliest first, and refuses what can never be.
func TestAvailability(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.hosts(t, 3)
	f.exec(t, "update nodes set vcpus = 64, zone = 'big' where name = 'n003'")
	made := f.make(t, ofHosts(in(2*time.Hour), "PT2H", `, "min": 2, "vcpus": 32, "zone": "nova"`))
	var found Slots
	a := f.Get(t, "/v1/leases/availability?hosts=3&duration=PT1H&traits=HW_CPU_X86_AVX2")
	if a.Status != http.StatusOK {
		t.Fatalf("got %d %s", a.Status, a.Body)
	} else if a.JSON(t, &found); len(found.Slots) != 2 || !found.Slots[0].End.Equal(made.Start) ||
		!found.Slots[1].Start.Equal(made.End) || found.Slots[1].Hosts != 3 {
		t.Errorf("got %s", a.Body)
	}
	query := "/v1/leases/availability?hosts=1&zone=big&vcpus=64&duration=P1M&limit=1&from=" + in(time.Hour)
	if f.Get(t, query).JSON(t, &found); len(found.Slots) != 1 {
		t.Errorf("the large host is free at %+v", found)
	}
	past := f.Get(t, "/v1/leases/availability?duration=PT1H&from="+in(-48*time.Hour)) // is now
	if past.JSON(t, &found); len(found.Slots) == 0 || found.Slots[0].Start.Before(made.CreatedAt) {
		t.Errorf("from the past: %s", past.Body)
	}
	full := fmt.Sprintf(`{"name": "x", "start": %q, "end": %q, "reservations": [{"type": "host", "min": 3}]}`,
		in(3*time.Hour), in(5*time.Hour))
	a = f.Post(t, "/v1/leases", full)
	refused(t, a, http.StatusConflict, "start")
	free, end := allowed(t, a, "start"), allowed(t, a, "end")
	if len(free) != 1 || len(end) != 1 {
		t.Fatalf("the refusal names no period: %s", a.Body)
	}
	a = f.Post(t, "/v1/leases?dry_run=true", fmt.Sprintf(
		`{"name": "x", "start": %q, "end": %q, "reservations": [{"type": "host", "min": 3}]}`, free[0], end[0]))
	if a.Status != http.StatusOK {
		t.Errorf("at the free time: %d %s", a.Status, a.Body)
	}
	for query, field := range map[string]string{
		"": "duration", "?duration=1h": "duration", "?duration=P0D": "duration", "?hosts=0&duration=PT1H": "hosts",
		"?duration=PT1H&limit=101": "limit", "?duration=PT1H&zone=moon": "zone", "?duration=PT1H&region=moon": "region",
		"?duration=PT1H&traits=HW_CPU_X86_AVX2,CUSTOM_X": "traits[1]", "?duration=PT1H&surprise=1": "surprise",
		"?duration=PT1H&from=" + in(time.Hour) + "&until=" + in(time.Minute): "until",
		"?duration=PT1H&until=" + in(time.Minute):                            "duration",
	} {
		refused(t, f.Get(t, "/v1/leases/availability"+query), http.StatusBadRequest, field)
	}
	refused(t, f.Get(t, "/v1/leases/availability?hosts=4&duration=PT1H"), http.StatusUnprocessableEntity, "hosts")
}

// TestHostsThatJoin: whatever lacks hosts says how many are joining the pool, and when to repeat the request.
func TestHostsThatJoin(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const soon = "joining, which takes about a minute: repeat the request then"
	says := func(want string, hosts int, more string) {
		t.Helper()
		lease := ofHosts("now", "PT1H", fmt.Sprintf(`, "min": %d, "max": %d%s`, hosts, hosts, more))
		zone := ""
		if more != "" {
			zone = "&zone=big"
		}
		for path, a := range map[string]testkit.Answer{
			"a lease":      f.Post(t, "/v1/leases", lease),
			"a dry run":    f.Post(t, "/v1/leases?dry_run=true", lease),
			"availability": f.Get(t, fmt.Sprintf("/v1/leases/availability?duration=PT1H&hosts=%d%s", hosts, zone)),
		} {
			var problem struct{ Detail string }
			a.JSON(t, &problem)
			isJoining, wanted := strings.Contains(problem.Detail, " join"), strings.Contains(want, " join")
			if a.Status < 400 || !strings.Contains(problem.Detail, want) || isJoining != wanted {
				t.Errorf("%s: got %d %s, want %q", path, a.Status, a.Body, want)
			}
		}
	}
	f.hosts(t, 3)
	f.exec(t, "update nodes set pool = 'leaving'")
	says("no host of this cloud is reservable: its admins choose", 1, "")
	f.exec(t, "update nodes set pool = 'joining'")
	says("no host of this cloud is reservable yet: 3 hosts are "+soon, 1, "")
	f.exec(t, "update nodes set reason = 'host n003 is in the aggregate gpu' where name <> 'n001'")
	says("no host of this cloud is reservable yet: 1 host is "+soon, 1, "")
	f.exec(t, "update nodes set pool = 'reservable', reason = '' where name = 'n001'")
	says("reservable hosts that match is 1; 2 of the chosen hosts cannot join yet, and admins see why", 2, "")
	f.exec(t, "update nodes set reason = ''")
	says("reservable hosts that match is 1; 2 hosts are "+soon, 2, "")
	says(`no reservable host is in the availability zone "big"; 2 hosts are `+soon, 1, `, "zone": "big"`)
	f.exec(t, "update nodes set pool = 'reservable'")
	says("reservable hosts that match is 3", 4, "")
}

// TestAllocations is for those to whom Nova shows its compute services.
func TestAllocations(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.hosts(t, 1)
	made := f.make(t, ofHosts("now", "PT1H", ""))
	a := f.Get(t, "/v1/leases/allocations")
	refused(t, a, http.StatusForbidden, "")
	if text := string(a.Body); strings.Contains(text, "os_compute_api") ||
		!strings.Contains(text, "the cloud's admins") {
		t.Errorf("it does not say for whom they are: %s", text)
	}
	f.exec(t, "alter table allocations rename to hidden") // a caller without the right is rejected before the table is read
	refused(t, f.Get(t, "/v1/leases/allocations"), http.StatusForbidden, "")
	f.exec(t, "alter table hidden rename to allocations")
	admin := f.server.As(testkit.Token(t, "admin"))
	var found Allocations
	a = admin.Get(t, "/v1/leases/allocations")
	if a.Status != http.StatusOK {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if a.JSON(t, &found); len(found.Allocations) != 1 || found.Allocations[0].Host != "n001" ||
		found.Allocations[0].LeaseID != made.ID || found.Allocations[0].ProjectID != f.project.ID {
		t.Errorf("got %s", a.Body)
	}
	found = Allocations{}
	if admin.Get(t, "/v1/leases/allocations?from="+in(2*time.Hour)).JSON(t, &found); len(found.Allocations) != 0 {
		t.Errorf("got %+v", found)
	}
}

// TestPagesOfAllocations are by host and time, each once.
func TestPagesOfAllocations(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.hosts(t, 3)
	for n := range 3 {
		f.make(t, ofHosts(in(time.Duration(2*n+1)*time.Hour), "PT1H", `, "min": 2`))
	}
	admin := f.server.As(testkit.Token(t, "admin"))
	var all, seen Allocations
	admin.Get(t, "/v1/leases/allocations").JSON(t, &all)
	pages := 0
	for path := "/v1/leases/allocations?limit=4"; path != ""; pages++ {
		var page Allocations
		a := admin.Get(t, path)
		if a.JSON(t, &page); a.Status != http.StatusOK || len(page.Allocations) > 4 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		seen.Allocations, path = append(seen.Allocations, page.Allocations...), ""
		if page.Next != nil {
			path = *page.Next
		}
	}
	if len(all.Allocations) != 6 || all.Next != nil || pages != 2 || !reflect.DeepEqual(all, seen) {
		t.Errorf("in %d pages %+v, in one %+v", pages, seen, all)
	}
	for _, marker := range []string{"n001", "2026-01-02T03:04:05Z,x,n001", "2026-01-02T03:04:05Z," + uuid.NewString()} {
		refused(t, admin.Get(t, "/v1/leases/allocations?marker="+marker), http.StatusBadRequest, "marker")
	}
}

// TestRetry starts again what has failed, with another trust.
func TestRetry(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	made := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
	path := "/v1/leases/" + made.ID.String()
	refused(t, f.Post(t, path+"/retry", ""), http.StatusConflict, "")
	f.exec(t, `update leases set status = 'error', starts_at = now() - interval '1 hour', start_result = 'failed',
		problem = '{"code": "conflict", "detail": "no host has room"}'`)
	var shown, retried Lease
	if f.Get(t, path).JSON(t, &shown); shown.Reason == nil || shown.Events[0].Status != "failed" {
		t.Errorf("shown %+v", shown)
	}
	refused(t, patch(t, f.Client, path, `{"name": "x"}`), http.StatusConflict, "")
	if a := f.Post(t, path+"/retry", ""); a.Status != http.StatusAccepted {
		t.Errorf("got %d %s", a.Status, a.Body)
	} else if a.JSON(t, &retried); retried.Status != domain.LeaseStarting {
		t.Errorf("retried %+v", retried)
	}
	if n := testkit.Scalar[int](t, f.conn, "select count(distinct delegation_id)::int from connections where status = "+
		"'active' and id = (select connection_id from leases)"); n != 1 || len(f.project.Trusts(t)) != 2 {
		t.Errorf("%d connections, and the trusts %v", n, f.project.Trusts(t))
	}
	refused(t, f.Post(t, "/v1/leases/"+uuid.NewString()+"/retry", ""), http.StatusNotFound, "")
}

func contains(body []byte, text string) bool { return bytes.Contains(body, []byte(text)) }

// TestLongHostScenarios: a refusal lists what the pool has.
func TestLongHostScenarios(t *testing.T) {
	t.Parallel()
	play(t, []scenario{
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
		{"create reservation by capabilities that do not parse, or are unknown", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			for wanted, has := range map[string][]string{
				"hypervisor_type >= many": nil, "color = red": {"disk_gb", "hypervisor_type", "ram_mb", "vcpus"},
				"trait:CUSTOM_FPGA = required": {"HW_CPU_X86_AVX2"},
			} {
				a := f.Post(t, "/v1/leases",
					ofHosts("now", "PT1H", fmt.Sprintf(`, "capabilities": ["vcpus > 1", %q]`, wanted)))
				refused(t, a, http.StatusBadRequest, "reservations[0].capabilities[1]")
				if got := allowed(t, a, "reservations[0].capabilities[1]"); !slices.Equal(got, has) {
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
	})
}
