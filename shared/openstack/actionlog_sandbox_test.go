package openstack_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// capped is the real Nova, which refuses the microversions that a release does not have.
func capped(t *testing.T, nova string, limit int) string {
	t.Helper()
	to, err := url.Parse(nova)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if minor, _ := strconv.Atoi(strings.TrimPrefix(r.Header.Get("X-OpenStack-Nova-API-Version"),
			"2.")); minor > limit {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotAcceptable)
			fmt.Fprintf(w, `{"computeFault":{"message":"maximum is 2.%d"}}`, limit)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL + strings.TrimSuffix(to.Path, "/")
}

// TestActionsOfARealServer: its creation finished after it began, as Nova's list says and as its events say.
func TestActionsOfARealServer(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	server := p.Boot(t, "logged", 1)[0]
	p.Quiet(t, server.ID)
	nova := testkit.Compute(t, p.Login(t)).Endpoint
	logs := map[int][]domain.LoggedAction{}
	for _, limit := range []int{93, 53} { // Zed, and Pike
		keystone := testkit.RedirectTo(t, map[string]string{"compute": capped(t, nova, limit)})
		cloud, err := openstack.New(openstack.Config{AuthURL: keystone.URL(), Interface: "public"}, openstack.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cloud.Close)
		if logs[limit], err = cloud.As(domain.Secret(p.Token(t)), p.ID).Actions(t.Context(), server.ID); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(logs[93], logs[53]); diff != "" || len(logs[93]) != 1 {
		t.Errorf("the events say something else than the list: %s", diff)
	}
	made := logs[93][0]
	if made.Name != "create" || made.Finish.Before(made.Start) { // to the second, so they may be equal
		t.Errorf("the creation has no end: %+v", made)
	}
	h := domain.History{
		ServerID: server.ID, Created: server.Created, Updated: made.Finish, State: domain.StateActive,
		Actions: logs[53],
	}
	if state, known := h.StateAt(made.Start.Add(-time.Second)); known && state == domain.StateActive {
		t.Error("the server counts as running when it was asked for")
	}
}
