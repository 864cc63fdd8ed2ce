package stats

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
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
		_, err = conn.Exec(ctx, `insert into stats_hourly (project_id, domain_id, hour, running, total, launched, by_status, source)
			values ($1, $2, $3, $4, $4 + 1, $4 + 2, $5, $6)`,
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
		case ago == 5 && (h.Source != domain.Missing || h.Running != nil || h.Total != nil || h.Launched != nil):
			t.Errorf("the missing hour is %+v", h)
		case ago != 5 && (h.Source != domain.Sampled || *h.Running != ago || *h.Total != ago+1 || *h.Launched != ago+2):
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
	if *last.Running != 10 || *last.Total != 12 || *last.Launched != 14 || last.Source != domain.Rebuilt ||
		last.ByStatus["SHUTOFF"] != 2 || before.Source != domain.Missing {
		t.Errorf("the domain's last hours are %+v and %+v", last, before)
	}
	app.As(testkit.Token(t, "admin")).Get(t, "/v1/stats?scope=cloud&hours=1").JSON(t, &ofCloud)
	if *ofCloud.Hours[0].Running != 110 || *ofCloud.Hours[0].Launched != 116 || !ofCloud.Complete {
		t.Errorf("the cloud's last hour is %+v", ofCloud.Hours[0])
	}
}

func TestStatsFormats(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "demo"))
	for accept, want := range map[string]string{
		"": "application/json", "image/svg+xml": "image/svg+xml", "text/html": "text/html; charset=utf-8",
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

// TestScopesNeedRoles: the table of who is entitled to what is domain's TestView.
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
			"another project's":         {demo, "?project_id=" + p.ID, 403},
			"an absent project's":       {demo, "?project_id=nope", 403},
			"without a token":           {"", "", 401},
			"a domain reader's project": {domainReader, "?project_id=" + p.ID, 200},
			"the cloud's, admin":        {admin, "?scope=cloud", 200},
			"an unknown scope":          {admin, "?scope=world", 400},
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
	var some struct{ Requests []map[string]any }
	mine.Get(t, "/v1/requests?limit=1&fields=id,status").JSON(t, &some)
	if len(some.Requests) != 1 || len(some.Requests[0]) != 2 {
		t.Errorf("two fields: got %v", some)
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

// log is a request log of n rows, the newest first. It fails once it was read failAt times (0 = never).
type log struct {
	n, reads, most, failAt int
}

func (l *log) List(_ context.Context, q domain.RequestQuery) (page []domain.Request, err error) {
	if l.reads++; l.reads == l.failAt {
		return nil, errors.New("postgres is unavailable")
	}
	l.most = max(l.most, q.Limit)
	next := l.n
	if q.Marker != uuid.Nil {
		next = int(q.Marker[14])<<8 + int(q.Marker[15])
	}
	for next--; next >= 0 && len(page) < q.Limit; next-- { // no id is the zero one
		r := domain.Request{At: time.Unix(int64(next), 0).UTC(), Path: "/" + strconv.Itoa(next)}
		r.ID[0], r.ID[14], r.ID[15] = 1, byte(next>>8), byte(next)
		page = append(page, r)
	}
	return page, nil
}

// exported is the body of an export, and how it ended.
func exported(t *testing.T, l *log, kind string, most int) (string, error) {
	t.Helper()
	h := handler{service{requests: l}}
	resp, err := h.export(t.Context(), domain.RequestQuery{}, kind, most)
	if err != nil {
		return "", err
	}
	var body bytes.Buffer
	err = resp.Stream(t.Context(), &body)
	return body.String(), err
}

// TestExport has every row once, page by page, up to the requested number.
func TestExport(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ rows, most, want int }{
		"none": {0, 0, 0}, "one": {1, 0, 1}, "a page": {exportPage, 0, exportPage},
		"a page and one": {exportPage + 1, 0, exportPage + 1},
		"many":           {5*exportPage + 7, 0, 5*exportPage + 7}, "some of them": {5 * exportPage, 10, 10},
		"no more than there are": {3, 10, 3},
	} {
		l := &log{n: tc.rows}
		text, err := exported(t, l, csvType, tc.most)
		if err != nil {
			t.Fatal(name, err)
		}
		rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		if err != nil || len(rows) != tc.want+1 || !slices.Equal(rows[0], csvHead) || l.most > exportPage {
			t.Fatalf("%s: %d rows, %v, with %d in memory", name, len(rows), err, l.most)
		}
		for i, row := range rows[1:] {
			if row[4] != "/"+strconv.Itoa(tc.rows-1-i) {
				t.Fatalf("%s: row %d is %v", name, i, row)
			}
		}
		lines, err := exported(t, &log{n: tc.rows}, ndjsonType, tc.most)
		if n := strings.Count(lines, "\n"); err != nil || n != tc.want {
			t.Errorf("%s: %d lines, %v", name, n, err)
		}
	}
}

// TestExportFails with a problem before the first row, and a broken connection later.
func TestExportFails(t *testing.T) {
	t.Parallel()
	h := handler{service{requests: &log{n: 1, failAt: 1}}}
	if _, err := h.export(t.Context(), domain.RequestQuery{}, csvType, 0); err == nil {
		t.Error("the first page failed, and the answer began")
	}
	if text, err := exported(t, &log{n: 3 * exportPage, failAt: 3}, csvType, 0); err == nil ||
		strings.Count(text, "\n") != 2*exportPage+1 {
		t.Errorf("got %d lines, %v", strings.Count(text, "\n"), err)
	}
}

// TestExportEscapesFormulas in text that clients choose.
func TestExportEscapesFormulas(t *testing.T) {
	t.Parallel()
	var body bytes.Buffer
	out := newRowWriter(csvType, &body)
	if err := errors.Join(out.write(Request{Method: `=HYPERLINK("http://x","y")`, Path: "/a,b\n\"c\"", UserName: "@joe"}),
		out.flush()); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&body).ReadAll()
	if err != nil || rows[1][3] != `'=HYPERLINK("http://x","y")` || rows[1][4] != "/a,b\n\"c\"" || rows[1][8] != "'@joe" {
		t.Errorf("the row is %q, %v", rows, err)
	}
}

// TestExportOverHTTP is what the list shows, in both forms, whole and with its own row in the log.
func TestExportOverHTTP(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	for range 3 {
		app.Get(t, "/v1/stats?hours=1")
	}
	var page RequestPage
	app.Get(t, "/v1/requests").JSON(t, &page)
	last := app.Get(t, "/v1/requests", "Accept", "application/x-ndjson")
	var rows []Request
	for line := range strings.Lines(string(last.Body)) {
		var r Request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	if len(rows) != 4 || rows[1].ID != page.Requests[0].ID || rows[1].UserName == "" ||
		last.Header.Get("Content-Type") != ndjsonType {
		t.Errorf("NDJSON: %v %s", last.Header, last.Body)
	}
	sheet := app.Get(t, "/v1/requests?limit=2", "Accept", "text/csv")
	read, err := csv.NewReader(bytes.NewReader(sheet.Body)).ReadAll()
	if err != nil || len(read) != 3 ||
		sheet.Header.Get("Content-Disposition") != `attachment; filename="requests.csv"` {
		t.Errorf("CSV: %v %v %s", err, sheet.Header, sheet.Body)
	}
	if n := testkit.Scalar[int](t, testkit.Connect(t, database),
		"select count(*)::int from requests where path = '/v1/requests'"); n != 3 {
		t.Errorf("%d exports and lists are in the log, want 3", n)
	}
	for query, accept := range map[string]string{
		"?since=x": "text/csv", "?acted_through=x": "text/csv",
		"?limit=0": "text/csv",
	} {
		if a := app.Get(t, "/v1/requests"+query, "Accept", accept); a.Status != 400 {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
	if a := app.Get(t, "/v1/requests", "Accept", "application/pdf"); a.Status != 406 {
		t.Errorf("a PDF: %d %s", a.Status, a.Body)
	}
}

// TestFloodOfStrangers: what an address sends beyond its limit takes one row, and disturbs neither those with a token
// nor other addresses.
func TestFloodOfStrangers(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	p := testkit.Spawn(t, testkit.Env(t, database, map[string]string{
		"FUNCTION_TARGET": "stats", "ADDRESS_RATE_LIMIT": "1", "TRUSTED_PROXIES": "127.0.0.1",
	}))
	from := func(address, token string) testkit.Answer {
		return p.As(token).Get(t, "/v1/stats", "X-Forwarded-For", "10.0.0.1, "+address)
	}
	demo := testkit.Token(t, "demo")
	if a := from("192.0.2.9", demo); a.Status != 200 { // the token is known from now on
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	refused, sent := 0, 0
	for ; refused < 20 && sent < 1000; sent++ {
		switch a := from("192.0.2.1", "garbage"); a.Status {
		case 401:
		case 429:
			if refused++; a.Header.Get("Retry-After") != "1" || a.Header.Get("RateLimit") != `"address";r=0;t=1` ||
				a.Header.Get("RateLimit-Policy") != `"address";q=100;w=100` {
				t.Errorf("got %v", a.Header)
			}
		default:
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
	}
	if refused < 20 {
		t.Errorf("only %d of %d requests were refused", refused, sent)
	}
	if a := from("192.0.2.1", demo); a.Status != 200 {
		t.Errorf("a token, from the same address: got %d %s", a.Status, a.Body)
	}
	if a := from("192.0.2.2", "garbage"); a.Status != 401 {
		t.Errorf("another address: got %d %s", a.Status, a.Body)
	}
	p.Terminate(t, time.Minute)
	var log struct {
		Requests []Request `json:"requests"`
	}
	operator := testkit.Start(t, testkit.Env(t, database, nil), Function).As(testkit.Token(t, "admin"))
	operator.Get(t, "/v1/requests?scope=cloud").JSON(t, &log)
	if i := slices.IndexFunc(log.Requests, func(r Request) bool { return r.Status == 429 }); i < 0 ||
		log.Requests[i].Count != refused || log.Requests[i].Remote != "192.0.2.1" {
		t.Errorf("an operator sees %+v", log.Requests)
	}
	conn := testkit.Connect(t, database)
	counted := testkit.Scalar[int](t, conn,
		"select count::int from requests where status = 429 and remote = '192.0.2.1'")
	own := testkit.Scalar[int](t, conn,
		"select count(*)::int from requests where status = 401 and remote = '192.0.2.1'")
	if counted != refused || own != sent-refused {
		t.Errorf("the log has %d refused requests and %d others, want %d and %d", counted, own, refused, sent-refused)
	}
}

// TestProjectLimit is apart from other projects'.
func TestProjectLimit(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), map[string]string{"PROJECT_RATE_LIMIT": "1"}), Function)
	busy, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	as := app.As(busy.Token(t))
	refused := testkit.Answer{}
	for range 1000 {
		if refused = as.Get(t, "/v1/stats"); refused.Status != 200 {
			break
		}
	}
	if refused.Status != 429 || refused.Header.Get("RateLimit-Policy") != `"project";q=10;w=10` {
		t.Errorf("got %d %v", refused.Status, refused.Header)
	}
	if a := app.As(other.Token(t)).Get(t, "/v1/stats"); a.Status != 200 {
		t.Errorf("another project: got %d %s", a.Status, a.Body)
	}
}
