package httpx

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// reports serves an operation whose handler checks credentials of its own, after the body is read.
func reports() Route {
	return Routes(func(api huma.API) {
		Register(api, huma.Operation{
			OperationID: "report", Method: http.MethodPost, Path: "/x",
			Security: []map[string][]string{{"nodeToken": {}}},
		}, func(context.Context, *struct{ Body map[string]string }) (*struct{}, error) { return &struct{}{}, nil })
	})[0]
}

// TestAnonymousBodies are small and come at once: they are read before anyone knows who sends them.
func TestAnonymousBodies(t *testing.T) {
	t.Parallel()
	padded := func(size int) string { return `{"a":"` + strings.Repeat("x", size-len(`{"a":""}`)) + `"}` }
	for name, tc := range map[string]struct {
		body   io.Reader
		status int
		detail string
		took   time.Duration
	}{
		"of the largest size": {strings.NewReader(padded(16 << 10)), 204, "", 0},
		"a byte larger":       {strings.NewReader(padded(16<<10 + 1)), 413, "the body is larger than 16384 bytes", 0},
		"slow but honest":     {&slowly{piece: `{      `, most: 9}, 400, "not valid JSON", 9 * time.Second},
		"at the rate of others": {
			&slowly{piece: strings.Repeat(" ", 2*bodyRate)}, 413, "the body is larger than 16384 bytes",
			9 * time.Second,
		},
		"a third of that": {
			&slowly{piece: strings.Repeat(" ", bodyRate)}, 400, "without X-Auth-Token all of it within 10s", bodyGrace,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			edge := (&recorder{}).edge()
			edge.Timeout = time.Minute
			api := edge.Handler([]Route{reports()})
			synctest.Test(t, func(t *testing.T) {
				client := inMemory(t, api, func(c net.Conn) net.Conn { return c })
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/x", tc.body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", jsonType)
				began := time.Now()
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				defer time.Sleep(2 * time.Second) // the transport ends with the body's next piece
				text, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != tc.status || !strings.Contains(string(text), tc.detail) || took < tc.took ||
					took > tc.took+2*time.Second {
					t.Errorf("got %d %s after %s", resp.StatusCode, text, took)
				}
			})
		})
	}
}

// TestCostlyBodies are rejected before anything is made of them: a map for each of 350 000 objects takes 20 MB. It is
// not parallel, because it counts allocations.
func TestCostlyBodies(t *testing.T) {
	var done int
	route := orders(&done)
	objects := `{"x":[` + strings.Repeat(`{},`, MaxBody/3-10) + `{}]`
	for name, tc := range map[string]struct {
		body string
		code apperr.Code
	}{
		"objects":            {objects + `}`, apperr.TooLarge},
		"objects with a key": {`{"x":[` + strings.Repeat(`{"a":0},`, 3000) + `{}]}`, apperr.TooLarge},
		"numbers":            {`{"x":[` + strings.Repeat(`0,`, 25_000) + `0]}`, apperr.TooLarge},
		"keys":               {`{` + numbered(25_000) + `}`, apperr.TooLarge},
		"in invalid UTF-8":   {objects + ",\"\xff\":0}", apperr.Invalid},
		"a hundred instances with all metadata that Nova takes": {
			`{"x":[` + strings.Repeat(`{"metadata":{`+numbered(128)+`}},`, 100) + `{}]}`, apperr.Invalid,
		},
	} {
		var err error
		allocated := testing.AllocsPerRun(1, func() { _, err = route.send(orderPath, jsonType, tc.body) })
		e := apperr.As(err)
		if hasMany := strings.Contains(e.Message, "the body has more than 25000 values"); e.Code != tc.code ||
			hasMany != (tc.code == apperr.TooLarge) || allocated > 60_000 {
			t.Errorf("%s: got %s %.200q after %.0f allocations", name, e.Code, e.Message, allocated)
		}
	}
}
