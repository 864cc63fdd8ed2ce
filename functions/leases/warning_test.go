package leases

import (
	"net/http"
	"testing"
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
