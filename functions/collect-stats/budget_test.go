package collectstats

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestBudget raises an alarm when the log has grown by more within a day.
func TestBudget(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s := newService(db, nil)
	exec := func(sql string) {
		if _, err := testkit.Connect(t, database).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("insert into request_log_sizes values (date_trunc('hour', now(), 'UTC') - interval '1 hour', 0)")
	exec(`insert into requests (id, function, method, path, status, ms, user_id, project_id, domain_id, request_id,
			remote, code)
		select gen_random_uuid(), '', 'GET', '/', 401, 1, '', '', '', '', '', '' from generate_series(1, 10000)`)
	for budget, want := range map[int64]bool{100 << 20: false, 1 << 20: true} {
		if s.budget = budget; s.checkBudget(t.Context()) != want {
			t.Errorf("a budget of %d bytes: alarm %t", budget, !want)
		}
	}
}
