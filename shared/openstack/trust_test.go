package openstack

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestTrustIsNotedBefore: without a note of its end Keystone is asked for no trust, and the note is of the end that is asked for.
func TestTrustIsNotedBefore(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("POST /v3/OS-TRUST/trusts", 201, `{"trust":{"id":"t1"}}`)
	away := errors.New("postgres is away")
	_, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member"}, time.Now(), func(context.Context, time.Time) error { return away })
	if calls := s.to("/v3/OS-TRUST/trusts"); !errors.Is(err, away) || len(calls) != 0 {
		t.Errorf("got %v, and Keystone %d calls", err, len(calls))
	}
	var noted time.Time
	trust, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member"}, time.Now(), func(_ context.Context, end time.Time) error {
		noted = end
		return nil
	})
	if err != nil || !trust.ExpiresAt.Equal(noted) {
		t.Errorf("noted was %s, the trust is %+v: %v", noted, trust, err)
	}
}

// TestFindTrust by its exact end, of the right user and project.
func TestFindTrust(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /v3/OS-TRUST/trusts", 200, `{"trusts":[
		{"id":"t1","trustor_user_id":"u1","project_id":"p1","expires_at":"2026-01-02T03:04:05.000006Z"},
		{"id":"t2","trustor_user_id":"u1","project_id":"p1","expires_at":"2026-01-02T03:04:05.000007Z"},
		{"id":"t3","trustor_user_id":"u3","project_id":"p1","expires_at":"2026-01-02T03:04:05.000008Z"},
		{"id":"t4","trustor_user_id":"u1","project_id":"p4","expires_at":"2026-01-02T03:04:05.000008Z"},
		{"id":"t5","trustor_user_id":"u1","project_id":"p1","expires_at":null}]}`)
	for micros, want := range map[int]string{6: "t1", 7: "t2", 8: "", 0: ""} {
		end := time.Date(2026, 1, 2, 3, 4, 5, micros*1000, time.UTC)
		if id, err := s.session(t).FindTrust(t.Context(), "u1", "p1", end); id != want || err != nil {
			t.Errorf("%s: got %q %v, want %q", end, id, err, want)
		}
	}
}
