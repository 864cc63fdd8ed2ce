package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLimitsHoldUnderTheLock: an order that was checked before the connection's limits changed is held against the new
// ones, and nothing of it is stored. Idle servers that it would have taken stay idle.
func TestLimitsHoldUnderTheLock(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	byID, onNetwork := func(o *domain.Order) { o.Instances[1].Spec.ImageRef = debian }, func(o *domain.Order) {
		o.Instances[1].Spec.NetworkIDs = []string{uuid.NewString()}
	}
	for name, tc := range map[string]struct {
		limits, field string
		reuse         bool
		change        func(*domain.Order)
	}{
		"another flavor":             {`{"flavors": ["other"]}`, "flavor", false, nil},
		"another flavor, with reuse": {`{"flavors": ["other"]}`, "flavor", true, nil},
		"another image":              {`{"images": ["` + uuid.NewString() + `"]}`, "image", false, byID},
		"another network":            {`{"networks": ["` + uuid.NewString() + `"]}`, "networks[0]", false, onNetwork},
		"what is allowed":            {`{"flavors": ["f"], "images": ["` + debian + `"]}`, "", false, byID},
		// run-connections looks it up
		"an image by name": {`{"images": ["` + uuid.NewString() + `"]}`, "", false, nil},
	} {
		c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
		idle := l.idle(t, c, fits, map[string]string{"pool": "a"})
		o := connectedOrder(c, 2)
		if o.Spec.Reuse = tc.reuse; tc.change != nil {
			tc.change(&o)
		}
		err := l.placeWhile(t, o, "update connections set limits = $2 where id = $1", c.ID, tc.limits)
		if tc.field == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if e := apperr.As(err); e.Code != apperr.Forbidden || len(e.Fields) != 1 || e.Fields[0].Field != tc.field {
			t.Errorf("%s: got %v, want one that names %s", name, err, tc.field)
		}
		const left = `select array_agg(id) from instances where connection_id = $1 and order_id is not null
  and state <> 'deleted' and spec->>'flavor_id' = 'fits'`
		if ids := testkit.Scalar[[]uuid.UUID](t, l.conn, left, c.ID); !slices.Equal(ids, []uuid.UUID{idle}) {
			t.Errorf("%s: the idle ones are %v", name, ids)
		}
		if n := testkit.Scalar[int](t, l.conn, "select count(*)::int from orders where id = $1", o.ID); n != 0 {
			t.Errorf("%s: the order is stored", name)
		}
	}
}

// placeWhile places an order while another session changes its connection, whose transaction ends when the order waits
// for it.
func (l testDB) placeWhile(t *testing.T, o domain.Order, sql string, args ...any) error {
	t.Helper()
	tx, err := l.conn.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
	const waits = "select exists (select from pg_locks where not granted and transactionid = pg_current_xact_id()::xid)"
	placed := make(chan error, 1)
	go func() {
		_, err := l.Place(t.Context(), o, 0)
		placed <- err
	}()
	testkit.Eventually(t, 10*time.Second, "the order waits", func() bool {
		var waiting bool
		return tx.QueryRow(t.Context(), waits).Scan(&waiting) == nil && waiting
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return <-placed
}
