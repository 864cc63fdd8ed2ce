package stats

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// now is the moment that the database's clock shows in these tests.
var now = time.Date(2026, 3, 29, 10, 20, 0, 0, time.UTC) // the clocks of Europe went forward in the night

func hour(ago int) time.Time { return now.Truncate(time.Hour).Add(-time.Duration(ago) * time.Hour) }

// count stores an hour of a project, and that the project was there for a day.
func count(t *testing.T, conn *pgx.Conn, project, domainID string, ago, running int, source domain.Source) {
	t.Helper()
	ctx := context.Background()
	by := map[string]int{"SHUTOFF": 1}
	if running > 0 {
		by["ACTIVE"] = running
	}
	_, err := conn.Exec(ctx, `insert into stats_projects values ($1, $2, $3, $4) on conflict do nothing`, project,
		domainID, hour(23), hour(0))
	if err == nil {
		_, err = conn.Exec(ctx, `insert into stats_hourly (project_id, domain_id, hour, running, total, by_status, source)
			values ($1, $2, $3, $4, $4 + 1, $5, $6)`,
			project, domainID, hour(ago), running, by, source)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestStatsOfADay(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	testkit.SetClock(t, database, now)
	conn := testkit.Connect(t, database)
	for ago := range 24 {
		if ago != 5 {
			count(t, conn, p.ID, p.DomainID, ago, ago, domain.Sampled)
		}
	}
	count(t, conn, "sibling", p.DomainID, 0, 10, domain.Rebuilt)
	count(t, conn, "stranger", "another-domain", 0, 100, domain.Sampled)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)

	var mine Stats
	app.As(p.Token(t)).Get(t, "/v1/stats").JSON(t, &mine)
	if len(mine.Hours) != 24 || !mine.From.Equal(hour(23)) || !mine.To.Equal(hour(0)) || mine.Complete ||
		mine.ProjectID != p.ID {
		t.Fatalf("got %+v", mine)
	}
	for i, h := range mine.Hours {
		ago := 23 - i
		switch {
		case !h.Hour.Equal(hour(ago)):
			t.Errorf("entry %d is of %s, want %s", i, h.Hour, hour(ago))
		case ago == 5 && (h.Source != domain.Missing || h.Running != nil || h.Total != nil):
			t.Errorf("the missing hour is %+v", h)
		case ago != 5 && (h.Source != domain.Sampled || *h.Running != ago || *h.Total != ago+1):
			t.Errorf("the hour %d ago is %+v", ago, h)
		}
	}
	for path, want := range map[string]int{"/v1/stats?hours=1": 1, "/v1/stats?hours=720": 720} {
		var got Stats
		app.As(p.Token(t)).Get(t, path).JSON(t, &got)
		if len(got.Hours) != want {
			t.Errorf("%s: %d entries", path, len(got.Hours))
		}
	}

	// Sums: only of an hour at which no project is missing.
	var ofDomain, ofCloud Stats
	app.As(testkit.DomainToken(t)).Get(t, "/v1/stats?scope=domain").JSON(t, &ofDomain)
	last, before := ofDomain.Hours[23], ofDomain.Hours[22]
	if *last.Running != 10 || *last.Total != 12 || last.Source != domain.Rebuilt || last.ByStatus["SHUTOFF"] != 2 ||
		before.Source != domain.Missing {
		t.Errorf("the domain's last hours are %+v and %+v", last, before)
	}
	app.As(testkit.Token(t, "admin")).Get(t, "/v1/stats?scope=cloud&hours=1").JSON(t, &ofCloud)
	if *ofCloud.Hours[0].Running != 110 || !ofCloud.Complete {
		t.Errorf("the cloud's last hour is %+v", ofCloud.Hours[0])
	}
}

func TestStatsFormats(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "demo"))
	for accept, want := range map[string]string{
		"":              "application/json",
		"*/*":           "application/json",
		"image/svg+xml": "image/svg+xml",
		"text/html":     "text/html; charset=utf-8",
		"image/*":       "image/svg+xml",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "text/html; charset=utf-8",
		"application/json;q=0.5, image/svg+xml;q=0.9":                     "image/svg+xml",
	} {
		a := app.Get(t, "/v1/stats", "Accept", accept)
		if a.Status != 200 || a.Header.Get("Content-Type") != want {
			t.Errorf("Accept %q: got %d %s, want %s", accept, a.Status, a.Header.Get("Content-Type"), want)
		}
	}
	if a := app.Get(t, "/v1/stats", "Accept", "application/pdf"); a.Status != 406 ||
		!strings.Contains(string(a.Body), "image/svg+xml") {
		t.Errorf("a PDF: got %d %s", a.Status, a.Body)
	}
}

func TestScopesNeedRoles(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	demo, domainReader, admin := testkit.Token(t, "demo"), testkit.DomainToken(t), testkit.Token(t, "admin")
	for _, path := range []string{"/v1/stats", "/v1/requests"} {
		for name, tc := range map[string]struct {
			token, query string
			want         int
		}{
			"own":                        {demo, "", 200},
			"another project's":          {demo, "?project_id=" + p.ID, 403},
			"an absent project's":        {demo, "?project_id=nope", 403},
			"the domain's":               {demo, "?scope=domain", 403},
			"the cloud's":                {demo, "?scope=cloud", 403},
			"nobody's":                   {"", "", 401},
			"a domain reader's":          {domainReader, "", 200},
			"a domain reader's project":  {domainReader, "?project_id=" + p.ID, 200},
			"the cloud's, domain reader": {domainReader, "?scope=cloud", 403},
			"the cloud's, admin":         {admin, "?scope=cloud", 200},
			"a project's, admin":         {admin, "?project_id=" + p.ID, 200},
			"an unknown scope":           {admin, "?scope=world", 400},
		} {
			if a := app.As(tc.token).Get(t, path+tc.query); a.Status != tc.want {
				t.Errorf("%s, %s: got %d %s, want %d", path, name, a.Status, a.Body, tc.want)
			}
		}
	}
	for _, query := range []string{"?hours=0", "?hours=721", "?hours=x", "?days=1"} {
		if a := app.As(demo).Get(t, "/v1/stats"+query); a.Status != 400 {
			t.Errorf("%s: got %d %s", query, a.Status, a.Body)
		}
	}
}

// TestRequestLog lists every request, page by page, rejected ones too, and only the own ones.
func TestRequestLog(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	mine := app.As(p.Token(t))
	id := "11111111-2222-4333-8444-555555555555"
	want := []string{
		mine.Get(t, "/v1/stats", "X-Request-Id", "req-"+id).Header.Get("X-Request-Id"),
		mine.Get(t, "/v1/stats?hours=0").Header.Get("X-Request-Id"),
		mine.Get(t, "/v1/requests?limit=1").Header.Get("X-Request-Id"),
	}
	if want[0] != "req-"+id {
		t.Errorf("the caller's request id became %s", want[0])
	}
	others := []testkit.Answer{
		app.Get(t, "/v1/stats"), app.Get(t, "/v1/nothing%00here\xff"), app.Do(t, "DELETE", "/v1/stats", ""),
		app.As("garbage").Get(t, "/v1/stats"),
	}

	var seen []Request
	path := "/v1/requests?limit=2"
	for {
		var page RequestPage
		mine.Get(t, path).JSON(t, &page)
		seen = append(seen, page.Requests...)
		if page.Next == nil {
			break
		}
		path = *page.Next
	}
	if len(seen) != 3 {
		t.Fatalf("the log has %+v", seen)
	}
	for i, r := range seen { // newest first
		if r.RequestID != want[2-i] || r.ProjectID != p.ID || r.UserID != p.UserID || r.Remote != "127.0.0.1" ||
			r.Function != "stats" {
			t.Errorf("row %d is %+v", i, r)
		}
	}
	if seen[1].Status != 400 || seen[1].Code != "invalid" || seen[1].Path != "/v1/stats" {
		t.Errorf("the refused one is %+v", seen[1])
	}
	conn := testkit.Connect(t, database)
	for _, a := range others {
		status := testkit.Scalar[int](t, conn, "select status::int from requests where request_id = $1",
			a.Header.Get("X-Request-Id"))
		if status != a.Status {
			t.Errorf("the log says %d, the answer was %d", status, a.Status)
		}
	}
	var since RequestPage
	mine.Get(t, "/v1/requests?since="+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)).JSON(t, &since)
	if len(since.Requests) != 0 {
		t.Errorf("requests of the future: %+v", since)
	}
	for _, query := range []string{"since=yesterday", "marker=1", "limit=0"} {
		if a := mine.Get(t, "/v1/requests?"+query); a.Status != 400 ||
			!testkit.Names(t, a, strings.Split(query, "=")[0]) {
			t.Errorf("%s: got %d %s", query, a.Status, a.Body)
		}
	}
	if dump := testkit.Dump(t, database); strings.Contains(dump, mine.Token[:40]) {
		t.Error("a token is in the database")
	}
}
