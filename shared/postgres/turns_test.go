package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// crowded is a database in which one project has a hundred callbacks that have waited forever, and another has one that
// was served just now.
func crowded(t *testing.T, status domain.CallbackStatus) (postgres.Outbox, *pgx.Conn) {
	t.Helper()
	url := testkit.Database(t)
	conn := testkit.Connect(t, url)
	for n := range 101 {
		project := "crowd"
		if n == 100 {
			project = "alone"
		}
		testkit.AddCallback(t, conn, project, fmt.Sprintf("https://r%d.example.com/", n), status, "whsec_x", "")
	}
	_, err := conn.Exec(t.Context(), `
update callbacks set not_before = now() - interval '1 second', served_at = now() where project_id = 'alone'`)
	if err != nil {
		t.Fatal(err)
	}
	for _, project := range []string{"crowd", "alone"} {
		testkit.AddEvents(t, conn, project, []string{uuid.NewString()}, 1)
	}
	return postgres.Outbox{DB: open(t, url)}, conn
}

// projects are those of attempts, in their number.
func projects(list []domain.Attempt) map[string]int {
	found := map[string]int{}
	for _, a := range list {
		found[a.Callback.ProjectID]++
	}
	return found
}

// TestProjectsTakeTurns: a project's many callbacks do not keep another's waiting.
func TestProjectsTakeTurns(t *testing.T) {
	t.Parallel()
	t.Run("deliveries", func(t *testing.T) {
		t.Parallel()
		outbox, conn := crowded(t, domain.CallbackVerified)
		room := domain.Room{Attempts: 10, PerCallback: 8}
		first, err := outbox.Claim(t.Context(), room, time.Minute)
		if got := projects(first); err != nil || got["alone"] != 1 || got["crowd"] != 9 {
			t.Fatalf("claimed %v: %v", got, err)
		}
		// While nine of the crowd are in work, a slot that becomes free is for the other project.
		for _, a := range first {
			if a.Callback.ProjectID == "crowd" {
				room.InFlight = append(room.InFlight, domain.StreamsInFlight{
					ProjectID: "crowd", CallbackID: a.Callback.ID, Streams: 1,
				})
			}
		}
		testkit.AddEvents(t, conn, "alone", []string{uuid.NewString()}, 1)
		room.Attempts = 1
		next, err := outbox.Claim(t.Context(), room, time.Minute)
		if got := projects(next); err != nil || got["alone"] != 1 {
			t.Errorf("then claimed %v: %v", got, err)
		}
	})
	t.Run("handshakes", func(t *testing.T) {
		t.Parallel()
		outbox, conn := crowded(t, domain.CallbackPending)
		first, err := outbox.ClaimHandshakes(t.Context(), 10, time.Minute)
		if got := projects(first); err != nil || got["alone"] != 1 || got["crowd"] != 9 {
			t.Fatalf("claimed %v: %v", got, err)
		}
		testkit.AddCallback(t, conn, "another", "https://r.example.com/", domain.CallbackPending, "whsec_x", "")
		next, err := outbox.ClaimHandshakes(t.Context(), 1, time.Minute)
		if got := projects(next); err != nil || got["another"] != 1 {
			t.Errorf("then claimed %v: %v", got, err)
		}
	})
}
