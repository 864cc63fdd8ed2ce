package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Upstream is where every function is, with placeholder for its name, such as http://{function}.cloudfn.svc.cluster.local.
type Upstream string

const placeholder = "{function}"

// Validate refuses an Upstream that cannot work. variable is where it was read.
func (u Upstream) Validate(variable string) error {
	if _, err := u.at("function"); err != nil {
		return errors.New(variable + " must be " + err.Error())
	}
	return nil
}

// at is the address of one function. Whatever is more than a scheme and a host would be lost, so it is refused.
func (u Upstream) at(function string) (*url.URL, error) {
	text := strings.ReplaceAll(string(u), placeholder, function)
	address, err := url.Parse(text)
	if err != nil || text == string(u) || address.Scheme != "http" && address.Scheme != "https" || address.Hostname() == "" ||
		text != address.Scheme+"://"+address.Host {
		return nil, errors.New("http or https and a host with " + placeholder + " in it, and nothing else, such as http://" +
			placeholder + ".cloudfn.svc.cluster.local")
	}
	return address, nil
}

// directory knows whose path it is, and where that function is.
type directory struct {
	owners   map[string]string   // the function, by how its paths begin: /v1/servers
	services map[string]*url.URL // by function
	fallback string              // the function that answers at every other path, with 404, and has it in the request log
}

func newDirectory(functions []function, upstream Upstream) (d directory, err error) {
	if d.owners, err = owners(functions); err != nil {
		return d, err
	}
	d.services = map[string]*url.URL{}
	for _, function := range d.owners {
		if d.services[function], err = upstream.at(function); err != nil {
			return d, err
		}
	}
	// Any would do, but launch takes few requests at a time: the last name is a rule that does not depend on the order of
	// the list, and gives a function (stats) that only reads.
	d.fallback = slices.Max(slices.Collect(maps.Keys(d.services)))
	return d, nil
}

// routePrefix is the part of a route's pattern that tells whose path it is: the name behind /v1, or the first one; or all of the
// path of the root.
var routePrefix = regexp.MustCompile(`^(?:[A-Z]+ )?(?:((?:/v1)?/[^/{]+)(?:/|$)|(/)\{\$\}$)`)

// owners finds in the functions' own routes how the paths of each begin.
func owners(functions []function) (map[string]string, error) {
	found := map[string]string{}
	for _, f := range functions {
		if f.Schedule != "" {
			continue // only events reach it
		}
		for _, pattern := range f.Routes {
			match := routePrefix.FindStringSubmatch(pattern)
			if match == nil || match[1] == "/v1" {
				return nil, fmt.Errorf("%s serves %q, which does not begin with a name of its own", f.Name, pattern)
			}
			prefix := match[1] + match[2]
			if other, taken := found[prefix]; taken && other != f.Name {
				return nil, fmt.Errorf("%s and %s both serve %s", other, f.Name, prefix)
			}
			found[prefix] = f.Name
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no function serves HTTP")
	}
	return found, nil
}

// function finds whose path it is. Each segment counts as http.ServeMux reads it in the function: an encoded
// slash is part of a name, and a path that is not clean is nobody's.
func (d directory) function(u *url.URL) string {
	escaped, prefix := u.EscapedPath(), ""
	for n, part := range strings.SplitN(escaped, "/", 4) {
		if n == 0 || n == 3 {
			continue
		}
		name, err := url.PathUnescape(part)
		if err != nil || strings.Contains(name, "/") {
			break
		}
		prefix += "/" + name
		if owner, ok := d.owners[prefix]; ok && (prefix != "/" || escaped == "/") {
			return owner
		}
	}
	return d.fallback
}

// toFunctions is the transport of whoever passes requests on.
func toFunctions() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 500,             // as many as requests that a copy takes at once (knative/services)
		IdleConnTimeout:     idleTimeout / 2, // sooner than the other side, so that no request meets its end
		// A client that asks first whether its body is wanted gets the function's word.
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // what the client did not ask for would be undone here
	}
}

// foreign refuses an answer that is none of the function's: Knative or an ingress speaks when the function cannot. Whether
// something was done is not known then.
func foreign(resp *http.Response, function, id string) error {
	switch status := resp.StatusCode; {
	case status == http.StatusSwitchingProtocols: // which nobody asked for
	case resp.Header.Get("X-Request-Id") == id || status != http.StatusNotFound && status < 500:
		return nil
	case status == http.StatusGatewayTimeout:
		return apperr.New(apperr.Timeout, "the function %s took too long", function)
	}
	return apperr.New(apperr.BadGateway, "the function %s gave no answer of its own, but there was one with status %d", function, resp.StatusCode)
}

// classify says why a request has no answer of its function. Unavailable promises that nothing was done.
func classify(ctx context.Context, function string, err error) error {
	if apperr.CodeOf(err) != apperr.Internal || ctx.Err() != nil {
		return err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return apperr.Wrap(apperr.Unavailable, err, "the function %s cannot be reached", function)
	}
	return apperr.Wrap(apperr.BadGateway, err, "the function %s broke off", function)
}
