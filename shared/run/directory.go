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

// Upstream is the URL of every function, with placeholder for its name, such as
// http://{function}.cloudfn.svc.cluster.local.
type Upstream string

const placeholder = "{function}"

// Validate fails on an Upstream that cannot work. variable is its environment variable.
func (u Upstream) Validate(variable string) error {
	if _, err := u.at("function"); err != nil {
		return errors.New(variable + " must be " + err.Error())
	}
	return nil
}

// at returns the URL of one function. It must have a scheme and a host only.
func (u Upstream) at(function string) (*url.URL, error) {
	text := strings.ReplaceAll(string(u), placeholder, function)
	address, err := url.Parse(text)
	if err != nil || text == string(u) || address.Scheme != "http" && address.Scheme != "https" ||
		address.Hostname() == "" ||
		text != address.Scheme+"://"+address.Host {
		return nil, errors.New("http or https and a host with " + placeholder + " in it, and nothing else, such as " +
			"http://" +
			placeholder + ".cloudfn.svc.cluster.local")
	}
	return address, nil
}

// directory maps paths to functions, and functions to URLs.
type directory struct {
	owners   map[string]string   // the function, by how its paths begin: /v1/servers
	services map[string]*url.URL // by function
	// fallback is the function that answers all other paths, with 404 and a row in the request log.
	fallback string
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
	// Any function would do. The last by name is stats, which takes many requests at a time.
	d.fallback = slices.Max(slices.Collect(maps.Keys(d.services)))
	return d, nil
}

// routePrefix is the part of a route's pattern that identifies the function: /v1/NAME, /NAME, or the root.
var routePrefix = regexp.MustCompile(`^(?:[A-Z]+ )?(?:((?:/v1)?/[^/{]+)(?:/|$)|(/)\{\$\}$)`)

// owners maps the prefixes of the functions' routes to the functions.
func owners(functions []function) (map[string]string, error) {
	found := map[string]string{}
	for _, f := range functions {
		if f.Kind == kindEvent {
			continue // only events reach it
		}
		d, _ := f.described()
		for _, pattern := range d.Routes {
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

// function returns the function of a path. It reads segments as http.ServeMux does in the function: an encoded slash is
// part of a name, and a path that is not clean belongs to no function.
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

// toFunctions returns a transport for forwarding requests to functions.
func toFunctions() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 500,             // the concurrency of a pod (knative/services)
		IdleConnTimeout:     idleTimeout / 2, // sooner than the server closes it
		// The function decides about Expect: 100-continue.
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // else the transport would decompress answers
	}
}

// foreign fails on an answer that is not the function's own: Knative or an ingress answers if the function cannot. It
// is unknown then whether something was done.
func foreign(resp *http.Response, function, id string) error {
	switch status := resp.StatusCode; {
	case status == http.StatusSwitchingProtocols: // which nobody asked for
	case resp.Header.Get("X-Request-Id") == id || status != http.StatusNotFound && status < 500:
		return nil
	case status == http.StatusGatewayTimeout:
		return apperr.New(apperr.Timeout, "the function %s took too long", function)
	}
	return apperr.New(apperr.BadGateway, "the function %s gave no answer of its own, but there was one with status %d",
		function, resp.StatusCode)
}

// classify returns why a request got no answer of its function. Unavailable promises that nothing was done.
func classify(ctx context.Context, function string, err error) error {
	if apperr.CodeOf(err) != apperr.Internal || ctx.Err() != nil {
		return err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return apperr.Wrap(apperr.Unavailable, err, "the function %s cannot be reached", function)
	}
	return apperr.Wrap(apperr.BadGateway, err, "the function %s broke off", function)
}
