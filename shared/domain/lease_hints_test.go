package domain

import (
	"testing"
	"time"
)

// TestLeaseOfMetadata reads the lease that a server's metadata names, and rejects times that cannot be read.
func TestLeaseOfMetadata(t *testing.T) {
	t.Parallel()
	const at = "2099-01-02T03:04:05Z"
	end := time.Date(2099, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		metadata map[string]string
		want     time.Time // zero = no lease
		fails    bool
	}{
		"none":         {map[string]string{"lease_start": "now", "role": "db"}, time.Time{}, false},
		"an end":       {map[string]string{"lease_end": at}, end, false},
		"a start":      {map[string]string{"lease_end": at, "lease_start": "now"}, end, false},
		"a wrong end":  {map[string]string{"lease_end": "tomorrow"}, time.Time{}, true},
		"a wrong time": {map[string]string{"lease_end": at, "lease_start": "9:00"}, time.Time{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			terms, _, ok, err := LeaseOfMetadata(tc.metadata)
			isRight := (err != nil) == tc.fails && ok == !tc.want.IsZero()
			if !isRight || ok && (!terms.End.Equal(tc.want) || !terms.Start.IsZero()) {
				t.Errorf("got %+v %v %v", terms, ok, err)
			}
		})
	}
}
