package leases

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestVolumeFields: what a reservation of a volume may have, and must.
func TestVolumeFields(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	a, b := f.instance(t, f.project.ID, "active"), f.instance(t, f.project.ID, "active")
	one, other := fmt.Sprintf(`{"type": "instance", "instance_id": %q}`, a), fmt.Sprintf(
		`{"type": "instance", "instance_id": %q}`, b)
	named := fmt.Sprintf(`{"type": "volume", "volume_id": %q}`, uuid.New())
	for _, row := range [][2]string{
		{`{"type": "volume", "size_gb": 1}`, "[0].instance_id"},
		{`{"type": "host"}, {"type": "volume", "size_gb": 1}`, "[1].instance_id"},
		{one + `, {"type": "volume"}`, "[1].volume_id"},
		{one + `, {"type": "volume", "size_gb": 0}`, "[1].size_gb"},
		{one + `, {"type": "volume", "size_gb": 1, "on_end": "shelve"}`, "[1].on_end"},
		{one + `, {"type": "volume", "size_gb": 1, "vcpus": 2}`, "[1].vcpus"},
		{one + `, {"type": "volume", "size_gb": 1, "volume_type": "none-such"}`, "[1].volume_type"},
		{one + `, {"type": "volume", "size_gb": 1, "instance_id": "` + b.String() + `"}`, "[1].instance_id"},
		{one + ", " + other + `, {"type": "volume", "size_gb": 1}`, "[2].instance_id"},
		{one + ", " + named, "[1].volume_id"},
		{one + ", " + named + ", " + named, "[2].volume_id"},
		{one + ", " + strings.Replace(named, "}", `, "size_gb": 1}`, 1), "[1].size_gb"},
		{strings.Replace(one, "}", `, "on_end": "delete"}`, 1), "[0].on_end"},
	} {
		reservations, field := row[0], row[1]
		body := `{"name": "x", "duration": "PT1H", "reservations": [` + reservations + "]}"
		refused(t, f.Post(t, "/v1/leases", body), http.StatusBadRequest, "reservations"+field)
	}
	f.nothing(t)
	c := f.connection(t, f.project.ID, "{start,stop,shelve,attach}")
	refused(t, f.Post(t, "/v1/leases", fmt.Sprintf(`{"name": "x", "duration": "PT1H", "connection_id": %q,
		"reservations": [%s, {"type": "volume", "size_gb": 1}]}`, c, one)), http.StatusBadRequest, "connection_id")
}

// ofVolume is the body of a lease of an instance, and of a volume for it.
func ofVolume(instance uuid.UUID, volume string) string {
	return fmt.Sprintf(`{"name": "x", "start": %q, "duration": "PT2H", "reservations": [
		{"type": "volume", %s}, {"type": "instance", "instance_id": %q}]}`, in(time.Hour), volume, instance)
}

// TestLeaseOfVolumes: new volumes and existing ones, of the lease's instance. Its connection permits to attach.
func TestLeaseOfVolumes(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := f.project.Boot(t, "with-a-disk", 1)[0].ID
	volume := f.project.AttachVolume(t, server)
	named := fmt.Sprintf(`"volume_id": %q, "on_end": "delete"`, volume)
	instance := f.instance(t, f.project.ID, "active")
	f.exec(t, "update instances set server_id = $1 where id = $2", server, instance)

	made := f.make(t, ofVolume(instance, `"size_gb": 2, "volume_type": "standard"`))
	r := made.Reservations[0]
	if r.InstanceID != instance || r.SizeGB != 2 || r.Name != "x" || r.OnEnd != domain.VolumeEndKeep ||
		r.Type != domain.VolumeReservation || r.VolumeID != "" {
		t.Errorf("got %+v", r)
	}
	actions := testkit.Scalar[string](t, f.conn, "select array_to_string(actions, ' ') from connections")
	if actions != "start stop shelve attach" {
		t.Errorf("its connection permits %s", actions)
	}
	var found LeasePage
	f.Get(t, "/v1/leases?type=volume").JSON(t, &found)
	if len(found.Items) != 1 {
		t.Errorf("of the type volume: got %+v", found)
	}
	if a := f.Do(t, "DELETE", path(made), ""); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}

	made = f.make(t, ofVolume(instance, named))
	if r := made.Reservations[0]; r.VolumeID != volume || r.OnEnd != domain.VolumeEndDelete || r.SizeGB != 0 {
		t.Errorf("got %+v", r)
	}
	ends := func(id uuid.UUID, more string) string {
		return fmt.Sprintf(`{"reservations": [{"id": %q, "on_end": "keep"}%s]}`, id, more)
	}
	reservation := made.Reservations[0].ID
	for _, onEnd := range []domain.VolumeEnd{domain.VolumeEndKeep, domain.VolumeEndKeep} {
		if r := f.changes(t, made, ends(reservation, "")).Reservations[0]; r.OnEnd != onEnd || r.VolumeID != volume {
			t.Errorf("got %+v", r)
		}
	}
	if got := testkit.Scalar[string](t, f.conn, `select string_agg(concat(data->'fields', data->'volume_ids'), '')
		from events where subject = $1::text and type = 'cloudfn.lease.changed.v1'`, made.ID); got !=
		fmt.Sprintf(`["reservations"][%q]`, volume) {
		t.Errorf("the events have %s", got)
	}
	for body, field := range map[string]string{
		ends(uuid.New(), ""):              "reservations[0].id",
		ends(made.Reservations[1].ID, ""): "reservations[0].id",
		ends(reservation, `, {"id": "`+reservation.String()+`", "on_end": "delete"}`): "reservations[1].id",
		`{"reservations": []}`: "reservations",
	} {
		refused(t, patch(t, f.Client, path(made), body), http.StatusBadRequest, field)
	}

	other := f.instance(t, f.project.ID, "active")
	a := f.Post(t, "/v1/leases", ofVolume(other, named))
	refused(t, a, http.StatusConflict, "reservations[0].volume_id")
	if !contains(a.Body, made.ID.String()) || !contains(a.Body, `"start"`) {
		t.Errorf("the same volume then: %s", a.Body)
	}
	// Later it is free, and a lease cannot be extended over that time.
	later := strings.Replace(ofVolume(other, named), in(time.Hour), in(4*time.Hour), 1)
	f.make(t, later)
	refused(t, patch(t, f.Client, path(made), `{"duration": "PT5H"}`), http.StatusConflict, "reservations[0].volume_id")

	// Of a lease that begins now the volume is free now.
	now := strings.Replace(ofVolume(other, named), `"start": "`+in(time.Hour)+`", `, "", 1)
	now = strings.Replace(now, "PT2H", "PT1M", 1)
	a = f.Post(t, "/v1/leases", now)
	refused(t, a, http.StatusConflict, "reservations[0].volume_id")
	if !contains(a.Body, server) {
		t.Errorf("got %s", a.Body)
	}
	stranger := f.server.As(testkit.BorrowProject(t).Token(t))
	refused(t, stranger.Post(t, "/v1/leases", later), http.StatusBadRequest, "reservations[0].volume_id")

	// The second lease waits as long as the first one may still detach the volume.
	f.exec(t, `update leases set status = 'error', end_result = 'failed' where id = $1`, made.ID)
	f.exec(t, `update reservations set during = tstzrange(now() - interval '2 h', now() - interval '1 h')
		where lease_id = $1`, made.ID)
	waits := testkit.Scalar[uuid.UUID](t, f.conn, "select lease_id from reservations where lease_id <> $1 and is_open "+
		"and type = 'volume'", made.ID)
	stored, err := postgres.Leases{DB: open(t, f)}.Get(t.Context(), f.project.ID, waits)
	if err != nil || stored.Reservations[0].WaitsFor != made.ID || stored.Reservations[1].WaitsFor != uuid.Nil {
		t.Errorf("got %+v, %v", stored.Reservations, err)
	}
	// What was made for a lease is in that lease until its end.
	f.exec(t, `update reservations set volume = volume || jsonb_build_object('id', $1::text), volume_id = null
		where volume_id = $1`, volume)
	a = f.Post(t, "/v1/leases", strings.Replace(ofVolume(other, named), in(time.Hour), in(9*time.Hour), 1))
	refused(t, a, http.StatusConflict, "reservations[0].volume_id")
	if !contains(a.Body, "was made for lease") {
		t.Errorf("got %s", a.Body)
	}
}

func open(t *testing.T, f fixture) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(f.database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// TestLeaseOfBootVolume: the volume that the leased server boots from cannot be leased, also while it is shelved.
func TestLeaseOfBootVolume(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	t.Cleanup(func() { project.DeleteVolumes(t) })
	f := startFor(t, project, project.Token(t), nil)
	instance := f.instance(t, project.ID, "active")
	session := project.Session(t)
	server, err := session.CreateServer(t.Context(), domain.LaunchSpec{
		FlavorID: project.DisklessFlavor(t), NetworkIDs: []string{testkit.Sandbox(t).NetworkID},
		Volumes: []domain.ServerVolume{{
			IsBoot: true, Source: domain.FromImage, SourceID: testkit.Sandbox(t).ImageID, SizeGB: 1,
			DeleteOnTermination: true,
		}},
	}, "from-volume", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	project.Await(t, server, "ACTIVE")
	attached, err := session.Attachments(t.Context(), server)
	if err != nil || len(attached) != 1 {
		t.Fatalf("got %+v, %v", attached, err)
	}
	volume := attached[0].VolumeID
	f.exec(t, "update instances set server_id = $1", server)
	a := f.Post(t, "/v1/leases", ofVolume(instance, fmt.Sprintf(`"volume_id": %q`, volume)))
	refused(t, a, http.StatusConflict, "reservations[0].volume_id")
	if !contains(a.Body, "boots from it") {
		t.Errorf("got %s", a.Body)
	}
}

// TestVolumesNeedNova279: where Nova is older the request is refused, and not the start of the lease.
func TestVolumesNeedNova279(t *testing.T) {
	t.Parallel()
	nova := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotAcceptable)
		_, _ = fmt.Fprintf(w, `{"computeFault": {"message": "Version %s is not supported by the API."}}`,
			strings.TrimPrefix(r.Header.Get("OpenStack-API-Version"), "compute "))
	}))
	t.Cleanup(nova.Close)
	f := start(t, testkit.RedirectTo(t, map[string]string{"compute": nova.URL + "/v2.1"}).Env(t, "demo"))
	instance := f.instance(t, f.project.ID, "active")
	a := f.Post(t, "/v1/leases", ofVolume(instance, `"size_gb": 1`))
	refused(t, a, http.StatusNotImplemented, "")
	if !contains(a.Body, "2.79") {
		t.Errorf("got %s", a.Body)
	}
	f.nothing(t)
}
