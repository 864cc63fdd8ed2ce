package httpx

import (
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Negotiate chooses among the offered content types what the request's Accept likes best; of equals, the one
// offered first. Without Accept it is the first.
func Negotiate(r *http.Request, offered ...string) (string, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return offered[0], nil
	}
	best, bestQ := "", 0.0
	for _, kind := range offered {
		if q := quality(accept, kind); q > bestQ {
			best, bestQ = kind, q
		}
	}
	if best == "" {
		err := apperr.Malformed("Accept", "a content type that is offered here", accept, slices.Clone(offered)...)
		err.Code = apperr.NotAcceptable
		return "", err
	}
	return best, nil
}

// quality is how much an Accept header likes a content type, 0 to 1: its most precise range decides.
func quality(accept, kind string) float64 {
	family, _, _ := strings.Cut(kind, "/")
	ranks := map[string]int{"*/*": 1, family + "/*": 2, kind: 3}
	q, rank := 0.0, 0
	for part := range strings.SplitSeq(accept, ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil || ranks[name] <= rank {
			continue
		}
		rank, q = ranks[name], 1
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil || q < 0 || q > 1 || math.IsNaN(q) {
				q = 0 // no weight (RFC 9110, 12.4.2)
			}
		}
	}
	return q
}
