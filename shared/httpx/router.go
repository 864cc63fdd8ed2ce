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
