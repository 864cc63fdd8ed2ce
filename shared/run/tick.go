package run

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/eventx"
)

// The retries of a local tick: as a PingSource, with more patience.
const (
	tickTries = 5
	tickPause = 10 * time.Second // doubled each time
)

// tick replaces a PingSource in the daemon, the clock's and that of collect-stats: it posts the same CloudEvent to the
// daemon's own address, at the start to catch up, and then by the schedule.
func tick(ctx context.Context, e event, self net.Addr) {
	url := "http://" + loopback(self) + "/events/" + e.Name
	client := &http.Client{Timeout: e.Timeout + time.Minute}
	for {
		next := e.schedule.next(time.Now())
		send(ctx, client, url, e, next)
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return
		}
	}
}

// loopback returns the address at which the process reaches itself.
func loopback(self net.Addr) string {
	addr, ok := self.(*net.TCPAddr)
	if ok && addr.IP.IsUnspecified() {
		return fmt.Sprintf("localhost:%d", addr.Port)
	}
	return self.String()
}

// send posts one tick until it is accepted or rejected for good, or the next one is due.
func send(ctx context.Context, client *http.Client, url string, e event, next time.Time) {
	pause := tickPause
	for range tickTries {
		isRetryable, err := post(ctx, client, url, e)
		if err == nil || ctx.Err() != nil {
			return
		}
		slog.WarnContext(ctx, "tick failed", "function", e.Name, "error", err, "retry", isRetryable)
		if !isRetryable || time.Until(next) < pause {
			return
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return
		}
	}
}

func post(ctx context.Context, client *http.Client, url string, e event) (isRetryable bool, err error) {
	event := eventx.Ping(e.Name, e.Key, time.Now())
	req, err := cloudevents.NewHTTPRequestFromEvent(ctx, url, event)
	if err != nil {
		return false, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return true, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return false, nil
	}
	return resp.StatusCode >= 500, fmt.Errorf("the function answered %s", resp.Status)
}
