package resources

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestResourcesOfConnection shows what was read through it, within its limits, to all who are authorized to act through
// it.
func TestResourcesOfConnection(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	owner, caller, stranger := testkit.BorrowProject(t), testkit.BorrowProject(t), testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(caller.Token(t))
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	c, err := postgres.Connections{DB: db}.Create(t.Context(), domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: owner.ID, DomainID: owner.DomainID, UserID: owner.UserID,
		Kind: domain.TrustConnection, DelegationID: "t",
		Actions: []domain.Permission{domain.MayAllocate}, UsableBy: []string{caller.UserID}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
		Limits:    domain.ConnectionLimits{Images: []string{"i1"}, Flavors: []string{"tiny"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := "/v1/resources?connection_id=" + c.ID.String()
	if a := app.Get(t, path); a.Status != 503 || a.Header.Get("Retry-After") == "" ||
		!strings.Contains(string(a.Body), "nothing was read") {
		t.Errorf("before anything was read: %d %s", a.Status, a.Body)
	}
	if due := testkit.Scalar[bool](t, testkit.Connect(t, database),
		"select next_check_at <= now() from connections"); !due {
		t.Error("its check is not due")
	}
	image := domain.Image{ID: "i1", Name: "cirros", Status: "active", Visibility: "public"}
	seen := domain.SeenResources{
		Flavors:   []domain.Flavor{{ID: "1", Name: "tiny", VCPUs: 1}, {ID: "2", Name: "small", VCPUs: 1}},
		Images:    []domain.Image{image, {ID: "i2", Name: "debian"}},
		Quota:     &domain.Quota{Instances: domain.QuotaItem{Max: 3}},
		Truncated: []string{domain.SeenFlavors},
		Problems: map[string]domain.Problem{
			domain.SeenNetworks: {Code: "unavailable", Detail: "neutron cannot be reached"},
		},
	}
	delegations := postgres.Delegations{DB: db}
	now, err := db.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := delegations.RecordResources(t.Context(), owner.ID, c.ID, now.Add(-2*time.Second), seen); err != nil {
		t.Fatal(err)
	}
	var got Resources
	a := app.Get(t, path)
	if a.JSON(t, &got); a.Status != 200 || len(got.Flavors) != 1 || len(got.Images) != 1 || got.Images[0].ID != "i1" ||
		got.Quota != nil ||
		got.Errors["networks"].Status != 503 || got.AsOf == nil || *got.Age < 2 || *got.Age > 60 ||
		fmt.Sprint(got.Truncated) != "[flavors]" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, path+"&kinds=quota"); a.Status != 200 || !strings.Contains(string(a.Body), `"quota"`) ||
		strings.Contains(string(a.Body), "flavors") {
		t.Errorf("the quota alone: %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, path+"&kinds=networks"); a.Status != 503 {
		t.Errorf("only what could not be read: %d %s", a.Status, a.Body)
	}
	for query, field := range map[string]string{
		path + "&region=west": "region", path + "&kinds=zones": "kinds",
		"/v1/resources?connection_id=x": "connection_id",
	} {
		if a := app.Get(t, query); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s", query, a.Status, a.Body)
		}
	}
	for who, want := range map[*testkit.Project]int{owner: 200, stranger: 404} {
		if a := app.As(who.Token(t)).Get(t, path); a.Status != want {
			t.Errorf("got %d %s, want %d", a.Status, a.Body, want)
		}
	}
	testkit.Scalar[int](t, testkit.Connect(t, database),
		"with u as (update connections set actions = '{start}' returning 1) select count(*)::int from u")
	if a := app.Get(t, path); a.Status != 403 {
		t.Errorf("when nothing can be ordered: %d %s", a.Status, a.Body)
	}
}
