package httpx

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// codes reads the codes from apperr's source, so that a new one cannot be forgotten here.
func codes(t *testing.T) []apperr.Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../apperr/apperr.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var list []apperr.Code
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Code" {
				text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, apperr.Code(text))
			}
		}
		return true
	})
	if len(list) < 15 {
		t.Fatalf("found only %v", list)
	}
	return list
}

func TestEveryCodeIsAProblem(t *testing.T) {
	t.Parallel()
	for _, code := range codes(t) {
		err := fmt.Errorf("x: %w", apperr.Wrap(code, errors.New("canary-cause"), "what went wrong"))
		resp := failure(err, "req-1", "https://k/v3")
		var p Problem
		if e := json.Unmarshal(resp.Body, &p); e != nil {
			t.Fatalf("%s: %v", code, e)
		}
		if resp.Status < 400 || resp.Status > 599 || resp.ContentType != ProblemType || resp.Code != code ||
			strings.Contains(string(resp.Body), "canary") {
			t.Errorf("%s: got %+v %s", code, resp, resp.Body)
		}
		want := Problem{"about:blank", p.Title, resp.Status, "what went wrong", code, "req-1", "", nil}
		if diff := cmp.Diff(want, p); diff != "" || p.Title == "" {
			t.Errorf("%s: %s", code, diff)
		}
		if retryable := resp.Status == 503 || resp.Status == 429; retryable != (resp.Header.Get("Retry-After") == "2") {
			t.Errorf("%s: Retry-After is %q", code, resp.Header.Get("Retry-After"))
		}
		if (resp.Status == 401) != (resp.Header.Get("WWW-Authenticate") == `Keystone uri="https://k/v3"`) {
			t.Errorf("%s: WWW-Authenticate is %q", code, resp.Header.Get("WWW-Authenticate"))
		}
	}
}

func TestRetryAfterIsRoundedUp(t *testing.T) {
	t.Parallel()
	for pause, want := range map[time.Duration]string{
		0: "2", time.Millisecond: "1", time.Second: "1", 1500 * time.Millisecond: "2", time.Hour: "3600",
	} {
		err := apperr.New(apperr.Unavailable, "retryable")
		err.RetryAfter = pause
		if got := failure(err, "", "").Header.Get("Retry-After"); got != want {
			t.Errorf("%s: got %q, want %q", pause, got, want)
		}
	}
}

func TestProblemNamesTheFields(t *testing.T) {
	t.Parallel()
	got := string(failure(apperr.InvalidField("networks[1]", "is not unique", "id-1", "id-2"), "req-1", "").Body)
	want := `{"type":"about:blank","title":"Bad Request","status":400,"detail":"networks[1]: is not unique","code":"invalid","request_id":"req-1",` +
		`"errors":[{"field":"networks[1]","detail":"is not unique","allowed":["id-1","id-2"]}]}` + "\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestHandle(t *testing.T) {
	t.Parallel()
	if _, err := JSON(200, func() {}); err == nil {
		t.Error("a function was written as JSON")
	}
	resp, err := JSON(202, map[string]string{"a": "<b>&"})
	if err != nil || resp.Status != 202 || string(resp.Body) != `{"a":"<b>&"}`+"\n" {
		t.Errorf("got %+v %s %v", resp, resp.Body, err)
	}
}
