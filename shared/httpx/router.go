package httpx

import (
	"net/http"
	"strings"
)

// router finds the route of a request. A literal segment comes before a wildcard, from left to right:
// /servers/history/x is of /servers/history/{id}, and not of /servers/{id}/x. One http.ServeMux rejects such a pair.
type router struct{ main, nested *http.ServeMux }

func newRouter(routes []Route) router {
	r := router{http.NewServeMux(), http.NewServeMux()}
	for _, route := range routes {
		mux := r.main
		if isNested(route.Pattern) {
			mux = r.nested
		}
		mux.Handle(route.Pattern, route)
	}
	return r
}

// isNested reports whether a pattern has a literal segment after a wildcard.
func isNested(pattern string) bool {
	return strings.Contains(strings.ReplaceAll(pattern, "}/{", ""), "}/")
}

// find hands a request to its route, which notes that in the exchange.
func (m router) find(r *http.Request) *exchange {
	x := &exchange{header: http.Header{}, request: r}
	m.main.ServeHTTP(x, r)
	if x.route == nil && (x.status == http.StatusNotFound || x.status == http.StatusMethodNotAllowed) {
		other := &exchange{header: http.Header{}, request: r}
		m.nested.ServeHTTP(other, r)
		if other.route != nil || x.status == http.StatusNotFound {
			return other
		}
	}
	return x
}

// exchange is one request on its way through the mux, which only hands over a ResponseWriter.
type exchange struct {
	header  http.Header
	status  int // what the mux itself answered: 404, 405 or a redirect
	route   *Route
	request *http.Request
	ran     bool // the route's handler
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// Write drops the mux's own body.
func (x *exchange) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader notes what the mux itself answered.
func (x *exchange) WriteHeader(status int) { x.status = status }

// ServeHTTP records that the mux chose this route, and its path values.
func (route Route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := w.(*exchange) //nolint:forcetypeassert // routes are only mounted by Edge.Handler
	x.route, x.request = &route, r
}
