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

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// log is a request log of n rows, the newest first. It fails once it was read failAt times (0 = never).
type log struct {
	n, reads, most, failAt int
}

func (l *log) List(_ context.Context, q domain.RequestQuery) (page []domain.Request, err error) {
	if l.reads++; l.reads == l.failAt {
		return nil, errors.New("postgres is away")
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
	for given, want := range map[string]string{
		"": "", "/v1/servers": "/v1/servers", "=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)",
		"\t=1": "'\t=1", "\r=1": "'\r=1",
		"a=1": "a=1", "ä": "ä",
	} {
		if got := cell(given); got != want {
			t.Errorf("%q is %q, want %q", given, got, want)
		}
	}
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
