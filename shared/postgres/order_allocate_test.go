package postgres_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// testDB is a database with connections of the project p1.
type testDB struct {
	postgres.Orders
	conn *pgx.Conn
}

func newTestDB(t *testing.T) testDB {
	t.Helper()
	url := testkit.Database(t)
	return testDB{postgres.Orders{DB: open(t, url)}, testkit.Connect(t, url)}
}

// storeConnection stores a connection that permits to allocate within a quota.
func (l testDB) storeConnection(
	t *testing.T, quota domain.ConnectionQuota, change func(*domain.Connection),
) domain.Connection {
	t.Helper()
	c := domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", DomainID: "d1", UserID: "u1", Kind: domain.TrustConnection,
		DelegationID: "t", Actions: []domain.Permission{domain.MayAllocate, domain.MayConnect}, Quota: quota,
		UsableBy: []string{}, Flavors: []domain.Flavor{}, ExpiresAt: time.Now().Add(time.Hour),
	}
	if change != nil {
		change(&c)
	}
	if c.Kind == domain.TrustConnection && c.TrustExpiresAt.IsZero() {
		c.TrustExpiresAt = c.ExpiresAt.Add(domain.TrustMargin)
	}
	return must(postgres.Connections{DB: l.DB}.Create(t.Context(), c))(t)
}

func (l testDB) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := l.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// connectedOrder is an order of n instances of 2 vCPUs and 2048 MB through the connection.
func connectedOrder(c domain.Connection, n int) domain.Order {
	o := newOrder(n)
	hash := sha256.Sum256(o.ID[:])
	o.BodySHA256, o.ConnectionID, o.Payload = hash[:], c.ID, []byte("sealed")
	for n := range o.Instances {
		i := &o.Instances[n]
		i.ConnectionID = c.ID
		i.Spec = domain.LaunchSpec{Metadata: map[string]string{"pool": "a"}, ImageRef: "debian"}
		i.Spec.Sized(domain.Flavor{ID: "f", VCPUs: 2, RAMMB: 2048, DiskGB: 10})
	}
	return o
}

// placeConcurrently places orders at the same moment.
func (l testDB) placeConcurrently(t *testing.T, orders ...domain.Order) []error {
	t.Helper()
	errs := make([]error, len(orders))
	begin := make(chan struct{})
	var all sync.WaitGroup
	for n, o := range orders {
		all.Go(func() {
			<-begin
			_, errs[n] = l.Place(t.Context(), o, 0)
		})
	}
	close(begin)
	all.Wait()
	return errs
}

func (l testDB) used(t *testing.T, c domain.Connection) domain.Need {
	t.Helper()
	found, err := postgres.Connections{DB: l.DB}.Get(t.Context(), domain.Identity{UserID: "u1", ProjectID: "p1"}, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	return found.Used
}

// TestQuotaHoldsConcurrently: two orders of 2 never make 4 where 3 fit, however the quota counts, 50 times each.
func TestQuotaHoldsConcurrently(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	three, six, much := 3, 6, 6144
	for name, quota := range map[string]domain.ConnectionQuota{
		"quota of instances is 3: 2 are used, and this takes 2 more":       {Instances: &three},
		"quota of vcpus is 6: 4 are used, and this takes 4 more":           {VCPUs: &six},
		"quota of ram_mb is 6144: 4096 are used, and this takes 4096 more": {RAMMB: &much},
	} {
		for range 50 {
			c := l.storeConnection(t, quota, nil)
			errs := l.placeConcurrently(t, connectedOrder(c, 2), connectedOrder(c, 2))
			refused := errs[0]
			if refused == nil {
				refused = errs[1]
			}
			if (errs[0] == nil) == (errs[1] == nil) || apperr.CodeOf(refused) != apperr.Quota ||
				!strings.Contains(refused.Error(), name) {
				t.Fatalf("%s: got %v", name, errs)
			}
			if got := l.used(t, c); got != (domain.Need{Instances: 2, VCPUs: 4, RAMMB: 4096}) {
				t.Fatalf("%s: used are %+v", name, got)
			}
			must(postgres.Connections{DB: l.DB}.End(t.Context(), "p1", c.ID, domain.ConnectionDeleted, "",
				true))(t)
		}
	}
	wantValue(t, l.conn, 150, "%d orders are stored, want 150", "select count(*)::int from orders")
	c := l.storeConnection(t, domain.ConnectionQuota{Instances: &three, VCPUs: &six}, nil)
	many := make([]domain.Order, 8)
	for n := range many {
		many[n] = connectedOrder(c, 1)
	}
	placed := 0
	for _, err := range l.placeConcurrently(t, many...) {
		if err == nil {
			placed++
		}
	}
	if got := l.used(t, c); placed != 3 || got.Instances != 3 {
		t.Errorf("%d of 8 orders were placed, %+v is used", placed, got)
	}
	one := connectedOrder(l.storeConnection(t, domain.ConnectionQuota{Instances: &three}, nil), 2)
	for _, err := range l.placeConcurrently(t, one, one, one, one) { // one order, sent four times
		if err != nil {
			t.Errorf("the same order: %v", err)
		}
	}
}

// TestQuotaOfAttached: new volumes and floating IPs of servers take a permission, and count.
func TestQuotaOfAttached(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	place := func(c domain.Connection) error {
		order := connectedOrder(c, 1)
		spec := &order.Instances[0].Spec
		spec.Volumes = []domain.ServerVolume{{IsBoot: true, SizeGB: 7}, {ID: "is there already"}}
		spec.FloatingIP = &domain.ServerFloatingIP{NetworkID: "public"}
		_, err := l.Place(t.Context(), order, 0)
		return err
	}
	if err := place(l.storeConnection(t, domain.ConnectionQuota{}, nil)); apperr.CodeOf(err) != apperr.Forbidden {
		t.Errorf("without the permission: %v", err)
	}
	one, ten := 1, 10
	for name, quota := range map[string]domain.ConnectionQuota{
		"quota of volumes is 1: 1 are used, and this takes 1 more":    {Volumes: &one},
		"quota of gigabytes is 10: 7 are used, and this takes 7 more": {Gigabytes: &ten},
		"quota of floating_ips is 1: 1 are used, and this takes 1":    {FloatingIPs: &one},
	} {
		c := l.storeConnection(t, quota, func(c *domain.Connection) { c.Actions = append(c.Actions, domain.MayAttach) })
		if first, err := place(c), place(c); first != nil || apperr.CodeOf(err) != apperr.Quota ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("got %v, then %v, want %s", first, err, name)
		}
		if got := l.used(t, c); got.Volumes != 1 || got.Gigabytes != 7 || got.FloatingIPs != 1 {
			t.Errorf("%+v is used", got)
		}
	}
}

// TestQuotaUntilTheRelease: the floating IP of a deleted server counts until it is released, else a connection could
// hold more than its quota while Neutron is unavailable.
func TestQuotaUntilTheRelease(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	one := 1
	c := l.storeConnection(t, domain.ConnectionQuota{FloatingIPs: &one}, func(c *domain.Connection) {
		c.Actions = append(c.Actions, domain.MayAttach)
	})
	order := func() domain.Order {
		o := connectedOrder(c, 1)
		o.Instances[0].Spec.FloatingIP = &domain.ServerFloatingIP{NetworkID: "public"}
		return o
	}
	first := order()
	_, err := l.Place(t.Context(), first, 0)
	noError(t, err)
	noError(t, change(t, l.Orders, []domain.Instance{with(first.Instances[0], "s1", domain.InstanceDeleted)}))
	if got := l.used(t, c); got.Instances != 0 || got.FloatingIPs != 1 {
		t.Errorf("before the release %+v is used", got)
	}
	if _, err := l.Place(t.Context(), order(), 0); apperr.CodeOf(err) != apperr.Quota {
		t.Errorf("before the release: %v", err)
	}
	noError(t, postgres.Polls{DB: l.DB}.FinishRelease(t.Context(), "p1", first.Instances[0].ID))
	if _, err := l.Place(t.Context(), order(), 0); err != nil {
		t.Errorf("after the release: %v", err)
	}
}

// TestWhatCountsAgainstQuota: instances count that have a server, or may have one.
func TestWhatCountsAgainstQuota(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	four := 4
	c := l.storeConnection(t, domain.ConnectionQuota{Instances: &four}, nil)
	o := connectedOrder(c, 4)
	if claim, err := l.Place(t.Context(), o, 0); err != nil || !claim.Fresh || claim.Acquired {
		t.Fatalf("got %t %v", claim.Fresh, err)
	}
	for n, step := range []struct {
		what string
		seen domain.Instance
		free int
	}{
		{"one that Nova has refused", refusedAs(o.Instances[0], "quota_exceeded"), 1},
		{"one in ERROR, whose server is there", with(refusedAs(o.Instances[1], "nova_fault"), "s1", domain.InstanceError), 1},
		{"one that is being deleted", with(o.Instances[2], "s2", domain.InstanceDeleting), 1},
		{"one that is deleted", with(o.Instances[2], "s2", domain.InstanceDeleted), 2},
		{"one that is stopped", with(o.Instances[3], "s3", domain.InstanceStopped), 2},
	} {
		noError(t, change(t, l.Orders, []domain.Instance{step.seen}))
		if got := l.used(t, c); got.Instances != 4-step.free {
			t.Errorf("%d, %s: used are %+v", n, step.what, got)
		}
	}
	l.exec(t, "update instances set disconnected_at = now() where server_id = 's3'")
	if _, err := l.Place(t.Context(), connectedOrder(c, 3), 0); apperr.CodeOf(err) != apperr.Quota {
		t.Errorf("a disconnected instance counts until it is deleted: %v", err)
	}
	if _, err := l.Place(t.Context(), connectedOrder(c, 2), 0); err != nil {
		t.Errorf("as many as are free: %v", err)
	}
}

// TestPlaceByConnection: an order is stored once, with its payload, which is deleted when the order is finalized.
func TestPlaceByConnection(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c, other := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	o := connectedOrder(c, 2)
	must(l.Place(t.Context(), o, 0))(t)
	got, err := l.Find(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: c.ID}, o.ID)
	if err != nil || string(got.Payload) != "sealed" || got.ConnectionID != c.ID ||
		got.Instances[1].ConnectionID != c.ID || got.Instances[1].Spec.VCPUs != 2 {
		t.Errorf("got %+v %v", got, err)
	}
	for _, hidden := range []domain.Filter{
		{ProjectID: "p1", ConnectionID: other.ID},
		{ProjectID: "p2", ConnectionID: c.ID},
	} {
		if _, err := l.Find(t.Context(), hidden, o.ID); apperr.CodeOf(err) != apperr.NotFound {
			t.Errorf("%s: %v", hidden, err)
		}
	}
	differs := o
	differs.BodySHA256 = []byte("another")
	if claim, err := l.Place(t.Context(), o, 0); err != nil || claim.Fresh {
		t.Errorf("again: %t %v", claim.Fresh, err)
	}
	wantCode(t, "another under the same id", errOf(l.Place(t.Context(), differs, 0)), apperr.Conflict)
	if claim, err := l.Place(t.Context(), differs, long); apperr.CodeOf(err) != apperr.Conflict || claim.Acquired {
		t.Errorf("one with its caller's token under the same id: %+v %v", claim, err)
	}
	for n := range got.Instances {
		got.Instances[n] = with(got.Instances[n], fmt.Sprint("s", n), domain.InstanceActive)
	}
	noError(t, l.Finalize(t.Context(), finalStatus(got)))
	if done := get(t, l.Orders, o); done.Status != domain.OrderDone || done.Payload != nil {
		t.Errorf("finalized: %s with %q", done.Status, done.Payload)
	}
	want := []string{"connection 1", "connection 1", "instance 2", "order 2"}
	rows, _ := l.conn.Query(t.Context(), `select split_part(type, '.', 2) || ' ' || count(*) from events
		where project_id = 'p1' and connection_id is not null group by type, connection_id order by 1`)
	if events, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || cmp.Diff(want, events) != "" {
		t.Errorf("the events are %v %v", events, err)
	}
}

// TestPlaceRejectsWhatConnectionForbids: an order that the connection does not permit, or no longer permits, leaves
// nothing in the database.
func TestPlaceRejectsWhatConnectionForbids(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	for name, tc := range map[string]struct {
		sql  string
		code apperr.Code
		want string
	}{
		"it has expired": {
			"update connections set expires_at = now() - interval '1 s' where id = $1", apperr.Forbidden,
			"ended at",
		},
		"it was not used": {`update connections set idle_timeout = '1 h', created_at = now() - interval '2 h'
  where id = $1`, apperr.Forbidden, "ended at"},
		"it is expired": {"update connections set status = 'expired' where id = $1", apperr.Forbidden, "ended at"},
		"it is lost": {
			"update connections set status = 'lost', reason = 'role taken' where id = $1",
			apperr.DelegationLost, "role taken",
		},
		"it is deleted": {"update connections set status = 'deleted' where id = $1", apperr.Forbidden, "ended"},
		"it permits others": {
			"update connections set actions = '{start,stop,connect}' where id = $1", apperr.Forbidden,
			"does not permit to allocate, only to start, stop, connect",
		},
		"it has no row": {"delete from connections where id = $1", apperr.NotFound, "there is no connection"},
		"it is another's": {
			"update connections set project_id = 'p2' where id = $1", apperr.NotFound,
			"there is no connection",
		},
		"there is no room": {
			`update connections set quota = '{"instances": 0}' where id = $1`, apperr.Quota,
			"is 0: 0 are used, and this takes 1 more",
		},
		"no room for one more": {
			`update connections set quota = '{"ram_mb": 2047}' where id = $1`, apperr.Quota,
			"takes 2048 more",
		},
	} {
		c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
		l.exec(t, tc.sql, c.ID)
		if _, err := l.Place(t.Context(), connectedOrder(c, 1), 0); apperr.CodeOf(err) != tc.code ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	wantValue(t, l.conn, 0, "%d rows were stored",
		`select (select count(*) from orders) + (select count(*) from instances) + (select count(*) from events
  where order_id is not null)`)
	wantValue(t, l.conn, 0, "%d connections count as used",
		"select count(*)::int from connections where last_used_at is not null")
}

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
	tx := must(l.conn.BeginTx(t.Context(), pgx.TxOptions{}))(t)
	must(tx.Exec(t.Context(), sql, args...))(t)
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
	noError(t, tx.Commit(t.Context()))
	return <-placed
}
