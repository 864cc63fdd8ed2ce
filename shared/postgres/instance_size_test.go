package postgres_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSetSize takes what a resize adds from the connection's quota, and gives it back.
func TestSetSize(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	six := 6
	mayResize := func(c *domain.Connection) {
		c.Actions = []domain.Permission{domain.MayConnect, domain.MayResize}
	}
	c := l.storeConnection(t, domain.ConnectionQuota{VCPUs: &six}, mayResize)
	store := postgres.Instances{DB: l.DB}
	one, _ := l.connectNow(t, foreignServer(uuid.NewString(), c.ID)) // 2 vCPUs each
	other, _ := l.connectNow(t, foreignServer(uuid.NewString(), c.ID))
	sized := func(i domain.Instance, vcpus int) domain.Instance {
		i.Spec.Resized(domain.Flavor{ID: "2", Name: "large", VCPUs: vcpus, RAMMB: 4096})
		return i
	}
	stored := func(i domain.Instance) int {
		return testkit.Scalar[int](t, l.conn, "select (spec->>'vcpus')::int from instances where id = '"+i.ID.String()+"'")
	}
	wantCode(t, "too large", store.SetSize(t.Context(), sized(one, 5)), apperr.Quota)
	for range 2 { // a repeated one takes no more
		noError(t, store.SetSize(t.Context(), sized(one, 4)))
	}
	wantCode(t, "no room is left", store.SetSize(t.Context(), sized(other, 3)), apperr.Quota)
	if n := stored(one); n != 4 || stored(other) != 2 {
		t.Errorf("stored are %d and %d vCPUs", n, stored(other))
	}
	back := one
	back.ConnectionID = uuid.Nil
	noError(t, store.SetSize(t.Context(), back))
	noError(t, store.SetSize(t.Context(), sized(other, 4)))

	own := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	third, _ := l.connectNow(t, foreignServer(uuid.NewString(), own.ID))
	l.exec(t, "update connections set actions = '{connect}' where id = $1", own.ID)
	wantCode(t, "without the permission", store.SetSize(t.Context(), sized(third, 3)), apperr.Forbidden)

	// What a read of the server shows is stored with the next change.
	third.IsOtherSize = true
	third.Spec.Resized(domain.Flavor{Name: "seen", VCPUs: 8, RAMMB: 1})
	must(store.Change(t.Context(), []domain.Instance{third}))(t)
	if n := stored(third); n != 8 {
		t.Errorf("stored are %d vCPUs", n)
	}
}
