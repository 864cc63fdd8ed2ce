package servers

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDeployOfAnImageThatIsNotAllowed is refused before anything is stored; what is allowed is taken.
func TestDeployOfAnImageThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	allowed, other := uuid.NewString(), uuid.NewString()
	l := lend(t, func(c *domain.Connection) { c.Limits.Images = []string{allowed} })
	id, _ := l.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	body := func(image string) string {
		return `{"action":"deploy","connection_id":%q,"image":"registry.example.com/agent:7","server_image":"` + image + `","confirm_rebuild":true}`
	}
	a, _ := l.act(t, id, body(other))
	if a.Status != 403 || !testkit.Names(t, a, "server_image") || !strings.Contains(string(a.Body), other) || !strings.Contains(string(a.Body), "only "+allowed) {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, l.conn, "select (select count(*) from actions)::int + (select count(*) from deployments)::int"); n != 0 {
		t.Errorf("%d rows are stored", n)
	}
	if a, action := l.act(t, id, body(allowed)); a.Status != 202 || action == "" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}
