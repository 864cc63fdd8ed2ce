package stats

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// The content types of an export, which has all rows and not a page of them.
const (
	csvType    = "text/csv"
	ndjsonType = "application/x-ndjson"
)

// rowWriter writes rows of an export.
type rowWriter interface {
	write(Request) error
	flush() error
}

// export answers with all rows that the query selects; limit is the most (0 = all). Its first rows are read before
// the answer begins, so that an error with them is answered as a problem.
func (h handler) export(ctx context.Context, q domain.RequestQuery, kind string, limit int) (httpx.Response, error) {
	first, err := h.svc.exportPage(ctx, &q, limit)
	if err != nil {
		return httpx.Response{}, err
	}
	resp := httpx.Response{Status: http.StatusOK, ContentType: kind, Header: http.Header{}}
	name := "requests.ndjson"
	if kind == csvType {
		resp.ContentType, name = csvType+"; charset=utf-8; header=present", "requests.csv"
	}
	resp.Header.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	resp.Header.Set("Vary", "Accept, X-Auth-Token")
	resp.Stream = func(ctx context.Context, w io.Writer) error {
		out := newRowWriter(kind, w)
		for page, left := first, limit; len(page) > 0; {
			for _, row := range page {
				if err := out.write(show(q.View, row)); err != nil {
					return err
				}
			}
			if err := out.flush(); err != nil {
				return err
			}
			if left -= len(page); limit > 0 && left <= 0 || len(page) < exportPage {
				break
			}
			if page, err = h.svc.exportPage(ctx, &q, left); err != nil {
				return err
			}
		}
		return out.flush()
	}
	return resp, nil
}

func newRowWriter(kind string, w io.Writer) rowWriter {
	if kind == csvType {
		out := csv.NewWriter(w)
		out.UseCRLF = true // RFC 4180
		_ = out.Write(csvHead)
		return csvRows{out}
	}
	buffer := bufio.NewWriter(w)
	lines := json.NewEncoder(buffer)
	lines.SetEscapeHTML(false)
	return ndjsonRows{lines, buffer}
}

type ndjsonRows struct {
	lines  *json.Encoder
	buffer *bufio.Writer
}

func (n ndjsonRows) write(r Request) error { return n.lines.Encode(r) }
func (n ndjsonRows) flush() error          { return n.buffer.Flush() }

// csvHead are the columns: the fields of a row in JSON.
var csvHead = []string{
	"id", "at", "function", "method", "path", "status", "ms", "user_id", "user_name", "project_id", "domain_id",
	"request_id", "remote", "code", "connection_id", "acted_in", "count",
}

type csvRows struct{ out *csv.Writer }

func (c csvRows) write(r Request) error {
	return c.out.Write([]string{
		r.ID.String(), r.At.Format(time.RFC3339Nano), cell(r.Function), cell(r.Method), cell(r.Path),
		strconv.Itoa(r.Status), strconv.Itoa(r.MS), cell(r.UserID), cell(r.UserName), cell(r.ProjectID),
		cell(r.DomainID), cell(r.RequestID), cell(r.Remote), cell(string(r.Code)), text(r.ConnectionID),
		cell(r.ActedIn), strconv.Itoa(r.Count),
	})
}

func (c csvRows) flush() error {
	c.out.Flush()
	return c.out.Error()
}

// cell escapes what a spreadsheet would take for a formula: an apostrophe makes it text.
func cell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + s
	}
	return s
}

func text(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}
