package postgres_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// TestListManagedByConnection lists page by page, the newest first, what is managed through one connection alone.
func TestListManagedByConnection(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	a, b := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	store := postgres.Instances{DB: l.DB}
	var want []string
	for range 5 {
		i, _ := l.connectNow(t, foreignServer(uuid.NewString(), a.ID))
		l.connectNow(t, foreignServer(uuid.NewString(), b.ID))
		want = append([]string{i.ServerID}, want...)
	}
	marker := ""
	var got []string
	for range 3 {
		page, err := store.ListManaged(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: a.ID}, 2, marker)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range page {
			got = append(got, i.ServerID)
			marker = i.ServerID
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %v, want %v", got, want)
	}
	if page, err := store.ListManaged(t.Context(), domain.Filter{ProjectID: "p2", ConnectionID: a.ID}, 10,
		""); err != nil || len(page) != 0 {
		t.Errorf("another project's: %v %v", page, err)
	}
	// By either id, in the order of the ids, and nothing of another connection.
	theirs, _ := l.connectNow(t, foreignServer(uuid.NewString(), b.ID))
	first, _ := store.ListManaged(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: a.ID}, 1, "")
	found, err := store.Find(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: a.ID},
		[]string{theirs.ServerID, want[1], first[0].ID.String(), uuid.NewString()})
	if err != nil || found[0].ID != uuid.Nil || found[1].ServerID != want[1] || found[2].ServerID != want[0] ||
		found[3].ID != uuid.Nil {
		t.Errorf("by ids: %v %v", found, err)
	}
}
