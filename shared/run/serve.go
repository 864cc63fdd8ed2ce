package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/GoogleCloudPlatform/functions-framework-go/funcframework"
	"github.com/GoogleCloudPlatform/functions-framework-go/functions"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// The limits of a server. API requests also have deadlines of their own.
const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeader         = 64 << 10
)

// A process that ends lets requests run to their deadline and drainSlack longer. Events stop waiting for later work;
// what they are working on is canceled after eventGrace, and the next event resumes it. The process waits wakeGrace for
// functions that it has just woken, because Knative may have to start a pod.
const (
	drainSlack = 5 * time.Second
	eventGrace = 15 * time.Second
	wakeGrace  = 3 * time.Second
	drainPause = 20 * time.Millisecond // between two looks at what is still being done
)

// untilSignal serves until SIGTERM or SIGINT, and then calls end.
func untilSignal(ctx context.Context, serve func(context.Context) error, end func(context.Context)) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := serve(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainSlack)
	defer cancel()
	end(closing)
	return err
}

// listen opens the address; host is the default for HOST.
func (l Listen) listen(ctx context.Context, host string) (net.Listener, error) {
	if l.Host != "" {
		host = l.Host
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, l.Port))
	if err != nil {
		return nil, fmt.Errorf("HOST %q, PORT %s: %w", host, l.Port, err)
	}
	return listener, nil
}

// serveHTTP serves until ctx ends, and then drains. No request is read for longer than longest.
func serveHTTP(
	ctx context.Context, l net.Listener, h http.Handler, longest time.Duration,
	drain func(context.Context, *http.Server) error,
) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ReadTimeout: longest, WriteTimeout: longest + time.Minute,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	slog.Info("draining")
	return drain(ctx, server)
}

func drain(ctx context.Context, server *http.Server, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return fmt.Errorf("requests were still running after %s: %w", limit, err)
	}
	return nil
}

func (p *Process) serve(ctx context.Context) error {
	serve := p.serveFunction
	if p.cfg.Target == "" {
		serve = p.serveDaemon
	}
	return untilSignal(ctx, serve, p.Close)
}

func (p *Process) serveDaemon(ctx context.Context) error {
	listener, err := p.cfg.listen(ctx, "127.0.0.1")
	if err != nil {
		return err
	}
	slog.Info("serving all functions", "address", listener.Addr().String())
	ticking, stopTicking := context.WithCancel(ctx)
	var ticks sync.WaitGroup
	ticks.Go(func() { p.tryAtStart(ticking) })
	ticks.Go(func() { p.atStart(ticking) })
	for _, e := range p.events {
		if e.schedule != "" {
			ticks.Go(func() {
				tick(ticking, e.schedule, func() error { return p.work(context.WithoutCancel(ctx), e, eventx.Ping) })
			})
		}
	}
	err = serveHTTP(ctx, listener, p.Handler(), p.cfg.RequestTimeout, p.drain)
	stopTicking() // the server may have failed, and ctx goes on
	p.stopEvents()
	ticks.Wait()
	return err
}

func (p *Process) drain(ctx context.Context, server *http.Server) error {
	p.ending()
	defer time.AfterFunc(eventGrace, p.stopEvents).Stop()
	end := time.Now().Add(eventGrace + drainSlack)
	err := drain(ctx, server, p.cfg.RequestTimeout+drainSlack)
	// What the daemon's ticks and its clock have woken is no request.
	for p.working.Load() > 0 && time.Now().Before(end) {
		time.Sleep(drainPause)
	}
	return err
}

// serveFunction serves one function by the functions framework, whose Start neither ends on SIGTERM nor returns its
// server. The server is in the context of its requests.
func (p *Process) serveFunction(ctx context.Context) error {
	var server atomic.Pointer[http.Server]
	handler := p.Handler()
	functions.HTTP(p.cfg.Target, func(w http.ResponseWriter, r *http.Request) {
		if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
			server.CompareAndSwap(nil, s)
		}
		handler.ServeHTTP(w, r)
	})
	slog.Info("serving", "function", p.cfg.Target, "port", p.cfg.Port)
	served := make(chan error, 1)
	go func() { served <- funcframework.StartHostPort(p.cfg.Host, p.cfg.Port) }()
	go p.warm(ctx)
	go p.atStart(ctx)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	slog.Info("draining")
	if server.Load() == nil {
		p.requestSelf(ctx) // no request has shown the server yet
	}
	s := server.Load()
	if s == nil {
		return errors.New("the server did not answer itself; ending without draining")
	}
	return p.drain(ctx, s)
}

// warm opens the connections that the first request needs, while Knative is still probing the pod. The first request
// reports failures.
func (p *Process) warm(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if p.log.Ready(ctx) == nil { // without Postgres nothing is sent to OpenStack
		_ = p.cloud.Reachable(ctx)
	}
}

func (p *Process) requestSelf(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	host := p.cfg.Host
	if host == "" || host == "0.0.0.0" || host == "::" {
		host = "localhost"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+net.JoinHostPort(host, p.cfg.Port)+"/healthz", nil)
	if err != nil {
		return
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

// tick replaces a PingSource in the daemon, the clock's and that of collect-stats: it does what its event would wake,
// at the start to catch up, and then by the schedule.
func tick(ctx context.Context, schedule Schedule, do func() error) {
	for next := schedule.next(time.Now()); ; next = schedule.next(time.Now()) {
		tryTick(ctx, next, do)
		if !flow.Sleep(ctx, time.Until(next)) {
			return
		}
	}
}

// The retries of a local tick: as those of a PingSource, with longer pauses.
const (
	tickTries = 5
	tickPause = 10 * time.Second // doubled each time
)

// tryTick repeats a tick until it is done or never will be, or the next one is due.
func tryTick(ctx context.Context, next time.Time, do func() error) {
	pause := tickPause
	for range tickTries {
		if err := do(); err == nil || !apperr.Retryable(err) || time.Until(next) < pause || !flow.Sleep(ctx, pause) {
			return
		}
		pause *= 2
	}
}
