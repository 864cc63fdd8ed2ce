package leases

import (
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestWarningByDefault comes an hour before the end, unless the request says otherwise or the lease is too short.
func TestWarningByDefault(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.hosts(t, 1)
	for period, want := range map[string]string{
		`"duration": "PT61M"`: "PT1H", `"duration": "PT1H"`: "", `"duration": "PT2H", "before_end": "PT0S"`: "",
		`"duration": "PT2H", "before_end": "PT5M"`: "PT5M",
	} {
		var made Lease
		a := f.post(t, period)
		if a.JSON(t, &made); a.Status != http.StatusCreated || made.BeforeEnd != want {
			t.Errorf("%s: got %d %s, want %q", period, a.Status, a.Body, want)
		}
		f.Do(t, "DELETE", path(made), "")
	}
}

// TestHostsOfEnded: an ended reservation shows how many hosts it had.
func TestHostsOfEnded(t *testing.T) {
	t.Parallel()
	at := time.Now()
	r := domain.Reservation{Status: domain.ReservationEnded, Want: &domain.HostWant{Min: 2}}
	r.Allocations = []domain.Allocation{
		{Node: "a", ReleasedAt: at}, {Node: "b", ReleasedAt: at}, {Node: "c", ReplacedAt: at, ReleasedAt: at},
	}
	if got := showReservation(r); *got.Hosts != 2 {
		t.Errorf("it had %d hosts", *got.Hosts)
	}
}
