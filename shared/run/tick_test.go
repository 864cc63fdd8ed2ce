package run

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/eventx"
)

// answers gives the next status each time, the last for ever; 0 is a connection that is refused.
type answers struct {
	statuses []int
	at       []time.Duration // when each tick came
	began    time.Time
}

// RoundTrip implements http.RoundTripper.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	event, err := cloudevents.NewEventFromHTTPRequest(r)
	if err != nil {
		return nil, err
	}
	if event.Type() != eventx.PingType || event.Extensions()[eventx.KeyExtension] != "k" {
		return nil, errors.New("this is no tick")
	}
	status := a.statuses[min(len(a.at), len(a.statuses)-1)]
	a.at = append(a.at, time.Since(a.began).Round(time.Second))
	if status == 0 {
		return nil, net.ErrClosed
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: http.NoBody}, nil
}

// TestATickIsSentUntilItIsTaken, unless it never can be or the next one is near.
func TestATickIsSentUntilItIsTaken(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, tc := range map[string]struct {
		statuses []int
		next     time.Duration
		want     []time.Duration
	}{
		"taken":              {[]int{204}, time.Hour, []time.Duration{0}},
		"refused for good":   {[]int{422}, time.Hour, []time.Duration{0}},
		"away at first":      {[]int{0, 503, 204}, time.Hour, []time.Duration{0, 10 * s, 30 * s}},
		"away for long":      {[]int{503}, time.Hour, []time.Duration{0, 10 * s, 30 * s, 70 * s, 150 * s}},
		"the next is near":   {[]int{503}, time.Minute, []time.Duration{0, 10 * s, 30 * s}},
		"the next is nearer": {[]int{503}, 5 * time.Second, []time.Duration{0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := &answers{statuses: tc.statuses, began: time.Now()}
				e := event{Handler: eventx.Handler{Name: "tick-things", Key: "k"}}
				send(t.Context(), &http.Client{Transport: a}, "http://self/events/tick-things", e,
					time.Now().Add(tc.next))
				if !slices.Equal(a.at, tc.want) {
					t.Errorf("it came at %v, want %v", a.at, tc.want)
				}
			})
		})
	}
}

// TestATickEndsWithTheProcess in the middle of a pause.
func TestATickEndsWithTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithTimeout(t.Context(), 3*time.Second)
		defer end()
		a := &answers{statuses: []int{503}, began: time.Now()}
		send(ctx, &http.Client{Transport: a}, "http://self/", event{Handler: eventx.Handler{Key: "k"}},
			time.Now().Add(time.Hour))
		if took := time.Since(a.began); took != 3*time.Second || len(a.at) != 1 {
			t.Errorf("it took %s and %d tries", took, len(a.at))
		}
	})
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for want, addr := range map[string]net.Addr{
		"127.0.0.1:80": &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, "localhost:80": &net.TCPAddr{
			IP: net.IPv4zero, Port: 80,
		},
		"localhost:81": &net.TCPAddr{IP: net.IPv6unspecified, Port: 81}, "[::1]:80": &net.TCPAddr{
			IP: net.IPv6loopback, Port: 80,
		},
	} {
		if got := loopback(addr); got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}
