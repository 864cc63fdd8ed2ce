package openstack

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestTrustIsNotedBefore: without a note of its end Keystone is asked for no trust, and the note is of the end that is
// asked for.
func TestTrustIsNotedBefore(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("POST /v3/OS-TRUST/trusts", 201, `{"trust":{"id":"t1"}}`)
	away := errors.New("postgres is away")
	_, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member"}, time.Now(),
		func(time.Time) (bool, error) { return false, away })
	if calls := s.to("/v3/OS-TRUST/trusts"); !errors.Is(err, away) || len(calls) != 0 {
		t.Errorf("got %v, and Keystone %d calls", err, len(calls))
	}
	var noted time.Time
	trust, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member"}, time.Now(), func(end time.Time) (bool, error) {
		first := noted.IsZero() // which is taken
		noted = end
		return !first, nil
	})
	if err != nil || !trust.ExpiresAt.Equal(noted) {
		t.Errorf("noted was %s, the trust is %+v: %v", noted, trust, err)
	}
}

// TestFindTrusts by the second of their end, of the right user and project.
func TestFindTrusts(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /v3/OS-TRUST/trusts", 200, `{"trusts":[
		{"id":"t1","trustor_user_id":"u1","project_id":"p1","expires_at":"2026-01-02T03:04:05.000000Z"},
		{"id":"t2","trustor_user_id":"u1","project_id":"p1","expires_at":"2026-01-02T03:04:05.900000Z"},
		{"id":"t3","trustor_user_id":"u3","project_id":"p1","expires_at":"2026-01-02T03:04:05.000000Z"},
		{"id":"t4","trustor_user_id":"u1","project_id":"p4","expires_at":"2026-01-02T03:04:05.000000Z"},
		{"id":"t6","trustor_user_id":"u1","project_id":"p1","expires_at":"2026-01-02T03:04:06.000000Z"},
		{"id":"t5","trustor_user_id":"u1","project_id":"p1","expires_at":null}]}`)
	for second, want := range map[int]string{5: "t1 t2", 6: "t6", 7: ""} {
		end := time.Date(2026, 1, 2, 3, 4, second, 488018000, time.UTC)
		if ids, err := s.session(t).FindTrusts(t.Context(), "u1", "p1", end); strings.Join(ids, " ") != want ||
			err != nil {
			t.Errorf("%s: got %q %v, want %q", end, ids, err, want)
		}
	}
}
