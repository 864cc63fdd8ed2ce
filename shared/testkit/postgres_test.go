package testkit

import "testing"

// TestLookingOpensFewConnections: a test that waits for a row may look for it hundreds of times.
func TestLookingOpensFewConnections(t *testing.T) {
	t.Parallel()
	url := Database(t)
	for range 100 {
		Scalar[int](t, Pool(t, url), "select 1")
	}
	n := Scalar[int](t, Pool(t, url),
		"select count(*)::int from pg_stat_activity "+
			"where datname = current_database() and backend_type = 'client backend'")
	if n > 2 {
		t.Errorf("100 looks opened %d connections", n)
	}
}
