package collectstats

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestProjectDeletedDuringRead: once Keystone says that it is gone, the sums of the cloud are known without it.
// One that is disabled stays expected.
func TestProjectDeletedDuringRead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		knows error // Keystone's answer for the project that is no longer listed
		known int   // hours of the cloud with a sum, of 3
	}{
		{"deleted", apperr.New(apperr.NotFound, "absent"), 3},
		{"disabled", nil, 0},
		{"not to be asked", apperr.New(apperr.Forbidden, "no"), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			database := testkit.Database(t)
			testkit.SetClock(t, database, time.Now().UTC().Truncate(time.Hour).Add(10*time.Minute))
			cloud := &fakeCloud{each: true, projects: []domain.Project{
				{ID: "stays", DomainID: "d"},
				{ID: "leaves", DomainID: "d"},
			}}
			cloud.before = func(call, of string) error {
				switch {
				case of != "leaves":
					return nil
				case call == "knows":
					return tc.knows
				}
				return apperr.New(apperr.NotFound, "keystone: no such project")
			}
			s := serviceOn(t, database, cloud, 3*time.Hour)
			_ = collect(t, s) // what it could not read
			conn := testkit.Connect(t, database)
			known := func() int {
				return testkit.Scalar[int](t, conn, "select count(*)::int from events where type = 'cloudfn.stats.hour.v1'")
			}
			if n := known(); n != tc.known {
				t.Errorf("%d hours of the cloud are known while it is listed, want %d", n, tc.known)
			}
			cloud.projects = cloud.projects[:1]
			if _, err := conn.Exec(t.Context(), "update jobs set claimed_until = null, claim_id = null"); err != nil {
				t.Fatal(err)
			}
			if err := collect(t, s); err != nil {
				t.Fatal(err)
			}
			if n := known(); n != tc.known {
				t.Errorf("%d hours of the cloud are known, want %d", n, tc.known)
			}
		})
	}
}
