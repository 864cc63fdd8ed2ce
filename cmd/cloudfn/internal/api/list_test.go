package api

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

type numbered struct {
	N int `json:"n"`
}

// pages is an API of two pages, and notes what it was asked. It is no real one: that would need over a thousand
// things. To the token "old" it answers 401.
func pages(t *testing.T, asked *[]string) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.RequestURI())
		switch {
		case r.Header.Get("X-Auth-Token") == "old":
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"detail":"the token is refused","code":"unauthenticated"}`)
		case r.Header.Get("Accept") == "image/svg+xml":
			fmt.Fprint(w, "<svg/>")
		case r.URL.Query().Get("marker") == "":
			fmt.Fprint(w, `{"things":[{"n":1},{"n":2},{"n":3}],"next":"/v1/things?marker=3"}`)
		default:
			fmt.Fprint(w, `{"things":[{"n":4},{"n":5}],"next":null}`)
		}
	}))
	t.Cleanup(server.Close)
	return New(Options{URL: server.URL, Token: func(_ context.Context, renew bool) (domain.Secret, error) {
		if renew {
			return "new", nil
		}
		return "old", nil
	}})
}

func values(items []Item[numbered]) (all []int) {
	for _, i := range items {
		all = append(all, i.Value.N)
	}
	return all
}

// TestList reads as many pages as it takes, and no more.
func TestList(t *testing.T) {
	t.Parallel()
	odd := func(n numbered) bool { return n.N%2 == 1 }
	for name, c := range map[string]struct {
		most  int
		keep  func(numbered) bool
		want  []int
		first string // the query of the first request
		calls int
	}{
		"all":            {0, nil, []int{1, 2, 3, 4, 5}, "/v1/things?limit=1000", 4},
		"some":           {2, nil, []int{1, 2}, "/v1/things?limit=2", 2},
		"those":          {0, odd, []int{1, 3, 5}, "/v1/things?limit=1000", 4},
		"some of those":  {3, odd, []int{1, 3, 5}, "/v1/things?limit=1000", 4},
		"fewer of those": {2, odd, []int{1, 3}, "/v1/things?limit=1000", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked []string
			list := List[numbered]{Path: "/v1/things", Key: "things", Limit: c.most, Keep: c.keep}
			found, err := list.Read(t.Context(), pages(t, &asked))
			if err != nil || !slices.Equal(values(found), c.want) || asked[0] != c.first || len(asked) != c.calls {
				t.Errorf("found %v by %q: %v", values(found), asked, err)
			}
		})
	}
}

// TestCopy asks for another token, too, when the stored one is rejected.
func TestCopy(t *testing.T) {
	t.Parallel()
	var asked []string
	var copied bytes.Buffer
	err := pages(t, &asked).Copy(t.Context(), &copied, "/v1/stats", nil, "image/svg+xml")
	if err != nil || copied.String() != "<svg/>" || len(asked) != 2 {
		t.Errorf("%q after %q: %v", copied.String(), asked, err)
	}
}

// TestErrorSaysWhatIsAllowed in the one line that there is.
func TestErrorSaysWhatIsAllowed(t *testing.T) {
	t.Parallel()
	allowed := []string{"start", "delete"}
	e := &Error{Status: http.StatusConflict, Detail: "it cannot be stopped", Fields: []FieldError{{
		Field:  "action",
		Detail: "cannot be stopped", Allowed: &allowed,
	}}}
	if got := e.Error(); got != "it cannot be stopped (allowed: start, delete)" {
		t.Errorf("it says %q", got)
	}
}
