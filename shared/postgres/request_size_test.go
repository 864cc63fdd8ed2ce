package postgres_test

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMeasure adds up what the log and stored responses grew by within a day, and takes nothing off for a month that
// was dropped.
func TestMeasure(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Requests{DB: open(t, url)}, testkit.Connect(t, url)
	measure := func() int64 {
		n, err := store.Measure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := measure(); n != 0 {
		t.Errorf("at first: %d bytes", n)
	}
	list := make([]domain.Request, 5000)
	for i := range list {
		list[i] = request("/v1/servers")
	}
	insert(t, store, list...)
	// An hour later: the empty log of before, and one that was larger before that.
	if _, err := conn.Exec(t.Context(), `update request_log_sizes set hour = hour - interval '1 hour';
		insert into request_log_sizes select hour - interval '1 hour', 1000000000 from request_log_sizes;
		insert into request_log_sizes values (now() - interval '3 days', 0)`); err != nil {
		t.Fatal(err)
	}
	before := int64(0)
	for range 2 {
		if before = measure(); before < 5000*100 || before > 5000*2000 {
			t.Errorf("5000 rows are %d bytes", before)
		}
	}
	exec(t, conn, `insert into idempotency_keys
		select 'p1', sha256(n::text::bytea), '', gen_random_uuid(), decode(repeat(md5(n::text), 50), 'hex'), null, null,
			now(), now() from generate_series(1, 1000) n`)
	if n := measure() - before; n < 1000*800 {
		t.Errorf("1000 responses are %d bytes", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from request_log_sizes"); n != 3 {
		t.Errorf("%d sizes are kept", n)
	}
}
