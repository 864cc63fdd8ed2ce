package leases

import (
	"net/http"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestWaysOutOfAnEnd: a lease whose end does not get done is retried, gets another on_end, and is released by an admin,
// while it is ending and when its end has failed.
func TestWaysOutOfAnEnd(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	admin := f.server.As(testkit.Token(t, "admin"))
	f.hosts(t, 1)
	made := f.make(t, ofHosts("now", "PT1H", ""))
	f.begin(t, made)
	lease := func(what string, a testkit.Answer, want int, status domain.LeaseStatus, onEnd domain.OnEnd) {
		t.Helper()
		var got Lease
		if a.Status == want {
			a.JSON(t, &got)
		}
		if a.Status != want || got.Status != status || got.OnEnd != onEnd {
			t.Errorf("%s: got %d %s", what, a.Status, a.Body)
		}
	}
	refused(t, f.Post(t, path(made)+"/retry", ""), http.StatusConflict, "")
	lease("delete", f.Do(t, "DELETE", path(made), ""), http.StatusAccepted, domain.LeaseEnding, domain.OnEndShelve)
	for _, status := range []domain.LeaseStatus{domain.LeaseEnding, domain.LeaseError} {
		fail := func() {
			if status == domain.LeaseError {
				f.exec(t, "update leases set status = 'error', end_result = 'failed'")
			}
		}
		fail()
		lease("change", patch(t, f.Client, path(made), `{"on_end": "snapshot_delete"}`), http.StatusOK, status,
			domain.OnEndSnapshotDelete)
		refused(t, patch(t, f.Client, path(made), `{"on_end": "stop"}`), http.StatusBadRequest, "on_end")
		refused(t, patch(t, f.Client, path(made), `{"on_end": "delete", "name": "x"}`), http.StatusConflict, "")
		refused(t, patch(t, f.Client, path(made), `{"duration": "P1D"}`), http.StatusConflict, "")
		lease("retry", f.Post(t, path(made)+"/retry", ""), http.StatusAccepted, domain.LeaseEnding,
			domain.OnEndSnapshotDelete)
		fail()
		refused(t, f.Do(t, "DELETE", path(made)+"?on_end=none", ""), http.StatusBadRequest, "on_end")
		lease("delete with another on_end", f.Do(t, "DELETE", path(made)+"?on_end=delete", ""), http.StatusAccepted,
			domain.LeaseEnding, domain.OnEndDelete)
	}
	refused(t, f.Post(t, path(made)+"/release", ""), http.StatusForbidden, "")
	refused(t, admin.Post(t, "/v1/leases/"+uuid.NewString()+"/release", ""), http.StatusNotFound, "")
	released := admin.Post(t, path(made)+"/release", "")
	lease("release", released, http.StatusAccepted, domain.LeaseEnding, domain.OnEndNone)
}
