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
)

// The limits of the daemon's server. Each request sets its own deadline for reading and writing besides.
const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeader         = 64 << 10
)

// A process that was asked to end lets requests run to their own deadline and a little longer. The work of an event
// is asked to stop sooner: whoever gets the event next goes on with it.
const (
	drainSlack = 5 * time.Second
	eventGrace = 15 * time.Second
)

// serve runs until SIGTERM or SIGINT, and then lets every request that was accepted finish.
func (p *Process) serve(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	if p.cfg.Target == "" {
		err = p.serveDaemon(ctx)
	} else {
		err = p.serveFunction(ctx)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainSlack)
	defer cancel()
	p.Close(closing)
	return err
}

func (p *Process) serveDaemon(ctx context.Context) error {
	host := p.cfg.Host
	if host == "" {
		host = "127.0.0.1"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, p.cfg.Port))
	if err != nil {
		return fmt.Errorf("PORT %s: %w", p.cfg.Port, err)
	}
	server := &http.Server{
		Handler: p.Handler(), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ReadTimeout: p.cfg.RequestTimeout, WriteTimeout: p.cfg.RequestTimeout + time.Minute,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	slog.Info("serving all functions", "address", listener.Addr().String())
	ticking, stopTicking := context.WithCancel(ctx)
	defer stopTicking()
	var ticks sync.WaitGroup
	for _, e := range p.events {
		ticks.Go(func() { tick(ticking, e, listener.Addr()) })
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	slog.Info("draining")
	err = p.drain(ctx, server)
	ticks.Wait()
	return err
}

func (p *Process) drain(ctx context.Context, server *http.Server) error {
	limit := p.cfg.RequestTimeout + drainSlack
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer time.AfterFunc(eventGrace, p.stopEvents).Stop()
	if err := server.Shutdown(ctx); err != nil {
		return fmt.Errorf("requests were still running after %s: %w", limit, err)
	}
	return nil
}

// serveFunction hands the one function to the functions framework, whose Start neither ends on SIGTERM nor
// returns its server. The server is found in the context of the requests that it serves.
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
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	slog.Info("draining")
	if server.Load() == nil {
		p.askItself(ctx) // nobody has called yet, so nobody has shown us the server
	}
	s := server.Load()
	if s == nil {
		return errors.New("the server did not answer itself; ending without draining")
	}
	return p.drain(ctx, s)
}

func (p *Process) askItself(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	host := p.cfg.Host
	if host == "" || host == "0.0.0.0" || host == "::" {
		host = "localhost"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, p.cfg.Port)+"/healthz", nil)
	if err != nil {
		return
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}
