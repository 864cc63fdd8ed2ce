package httpx

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// streaming is a route whose answer is a Stream.
func streaming(stream Stream) Route {
	return Handle("GET /x", func(*http.Request) (Response, error) {
		return Response{Status: http.StatusOK, ContentType: "text/csv", Stream: stream}, nil
	})
}

func fetch(t *testing.T, method, url string) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// TestStream: the row is there before the first byte, and HEAD makes none.
func TestStream(t *testing.T) {
	t.Parallel()
	j, calls := &recorder{}, 0
	server := serve(t, j.edge(), streaming(func(ctx context.Context, w io.Writer) error {
		calls++
		j.mu.Lock()
		defer j.mu.Unlock()
		if len(j.rows) != 1 || j.rows[0].Status != http.StatusOK {
			t.Errorf("when the body begins the rows are %+v", j.rows)
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("a stream has no deadline")
		}
		for range 1000 {
			if _, err := io.WriteString(w, strings.Repeat("x", 99)+"\n"); err != nil {
				return err
			}
		}
		return nil
	}))
	if status, body, err := fetch(t, http.MethodGet, server.URL); status != 200 || len(body) != 100_000 || err != nil {
		t.Errorf("got %d, %d bytes, %v", status, len(body), err)
	}
	if status, body, err := fetch(t, http.MethodHead, server.URL); status != 200 || body != "" || err != nil ||
		calls != 1 {
		t.Errorf("HEAD: got %d %q, %v, after %d calls", status, body, err, calls)
	}
}

// TestStreamBreaksOff: the client gets an error, and never a part for the whole; also behind what makes an answer of a
// panic.
func TestStreamBreaksOff(t *testing.T) {
	t.Parallel()
	j := &recorder{}
	server := serve(t, j.edge(), streaming(func(_ context.Context, w io.Writer) error {
		_, _ = io.WriteString(w, "a,b\r\n")
		return errors.New("postgres is away")
	}))
	handler := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				_, _ = io.WriteString(w, "it panicked")
			}
		}()
		handler.ServeHTTP(w, r)
	})
	if status, body, err := fetch(t, http.MethodGet, server.URL); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %d %q, %v", status, body, err)
	}
	if len(j.rows) != 1 {
		t.Errorf("the rows are %+v", j.rows)
	}
}

// TestStreamWithoutARow is a problem: nothing of it was sent.
func TestStreamWithoutARow(t *testing.T) {
	t.Parallel()
	j := &recorder{record: apperr.New(apperr.Unavailable, "the request log cannot be written")}
	server := serve(t, j.edge(), streaming(func(context.Context, io.Writer) error {
		t.Error("it was sent without its row")
		return nil
	}))
	if status, body, err := fetch(t, http.MethodGet, server.URL); status != 503 ||
		!strings.Contains(body, "the request log") || err != nil {
		t.Errorf("got %d %q, %v", status, body, err)
	}
}

// TestStreamWithoutEnd ends when its time is up.
func TestStreamWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		edge, ended := (&recorder{}).edge(), make(chan error, 1)
		client := inMemory(t, edge.Handler([]Route{streaming(func(ctx context.Context, w io.Writer) error {
			for {
				if _, err := io.WriteString(w, "x\n"); err != nil || ctx.Err() != nil {
					ended <- errors.Join(err, ctx.Err())
					return errors.Join(err, ctx.Err())
				}
				time.Sleep(time.Second)
			}
		})}), func(c net.Conn) net.Conn { return c })
		resp, err := client.Get("http://x/x")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("a stream without an end ended well")
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended by %v", err)
		}
	})
}

// TestRowOfWhatWasActed: the row says through which connection the request acted, also when it is refused.
func TestRowOfWhatWasActed(t *testing.T) {
	t.Parallel()
	c := domain.Connection{ID: [16]byte{1}, ProjectID: "owner", DomainID: "d2"}
	for method, fail := range map[string]error{
		http.MethodGet: nil, http.MethodPost: apperr.New(apperr.Forbidden, "no"),
	} {
		j := &recorder{}
		server := serve(t, j.edge(), Handle(method+" /x", func(r *http.Request) (struct{}, error) {
			domain.RecordConnection(r.Context(), c)
			return struct{}{}, fail
		}))
		if _, _, err := fetch(t, method, server.URL); err != nil {
			t.Fatal(err)
		}
		want := domain.UsedConnection{ConnectionID: c.ID, ProjectID: "owner", DomainID: "d2"}
		if len(j.rows) != 1 || j.rows[0].Used != want || j.rows[0].ProjectID != "p1" {
			t.Errorf("%s: the rows are %+v", method, j.rows)
		}
	}
}
