package launch

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// faultless is a proxy of the real Nova whose lists have no faults, like those of a Nova whose API has another database
// than the server's cell. The sandbox's API shares that of cell0, which has the servers that got no host.
func faultless(t *testing.T) (computeURL string) {
	t.Helper()
	nova, err := url.Parse(testkit.Compute(t, testkit.Login(t, "admin")).Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = nova.Scheme, nova.Host },
		ModifyResponse: func(r *http.Response) error {
			var list struct {
				Servers []map[string]any `json:"servers"`
			}
			body, err := io.ReadAll(r.Body)
			if json.Unmarshal(body, &list) == nil && list.Servers != nil {
				for _, server := range list.Servers {
					delete(server, "fault")
				}
				body, _ = json.Marshal(list)
				r.Header.Del("Content-Length")
				r.ContentLength = int64(len(body))
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			return err
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL + strings.TrimSuffix(nova.Path, "/")
}

// TestLongFaultOfServerInError checks that the order and its event have Nova's fault, although Nova's lists leave it
// out.
func TestLongFaultOfServerInError(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	env := testkit.RedirectTo(t, map[string]string{"compute": faultless(t)}).Env(t, "collector")
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	id := uuid.NewString()
	var order Order
	if a := app.Post(t, "/v1/launch",
		body(t, object{"id": id, "flavor": p.TooLargeFlavor(t)})); a.Status != http.StatusAccepted {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	testkit.Eventually(t, 4*time.Minute, "the order ends", func() bool {
		app.Get(t, "/v1/launch/"+id).JSON(t, &order)
		return order.Status != domain.OrderRunning
	})
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Error == nil ||
		!strings.HasPrefix(i.Error.Detail, "No valid host was found") {
		t.Errorf("the order is %s: %+v", order.Status, i.Error)
	}
	fault := testkit.Scalar[string](t, testkit.Connect(t, database),
		"select data->'fault'->>'detail' from events where subject = $1 and data->>'state' = 'error'",
		order.Instances[0].ID.String())
	if !strings.HasPrefix(fault, "No valid host was found") {
		t.Errorf("its event says %q", fault)
	}
}
