package openstack

import (
	"encoding/json"
	"testing"
	"time"
)

// TestTimesOfKeystone: the forms that Zed was seen to write, and those of other releases.
func TestTimesOfKeystone(t *testing.T) {
	t.Parallel()
	whole := time.Date(2026, 11, 22, 7, 17, 56, 0, time.UTC)
	exact := whole.Add(716060 * time.Microsecond)
	for text, want := range map[string]time.Time{
		`"2026-11-22T07:17:56.000000Z"`: whole, `"2026-11-22T07:17:56Z"`: whole, `"2026-11-22T07:17:56"`: whole,
		`"2026-11-22T07:17:56.716060"`: exact, `"2026-11-22T07:17:56.716060Z"`: exact,
		`"2026-11-22T08:17:56.71606+01:00"`: exact,
		`"2026-11-22T07:17:56+0000"`:        whole, `"2026-11-22 07:17:56"`: whole, `null`: {},
	} {
		var got keystoneTime
		if err := json.Unmarshal([]byte(text), &got); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %s %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{`"soon"`, `""`, `5`, `"2026-11-22"`, `"2026-13-22T07:17:56"`} {
		var got keystoneTime
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s is read as %s", text, got)
		}
	}
}
