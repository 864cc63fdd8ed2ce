package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"time"
)

// stream is a connection whose sending side can end alone: TCP and unix.
type stream interface {
	net.Conn
	CloseWrite() error
}

// forward passes each connection to address on to target.
func forward(ctx context.Context, address, target string) error {
	network := "tcp"
	if path, ok := strings.CutPrefix(target, "unix:"); ok {
		network, target = "unix", path
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	log.Printf("forwarding %s to %s %s", address, network, target)
	for {
		client, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("forward: %w", err)
		case err != nil: // too many open files, or the client has disconnected already
			log.Print(err)
			time.Sleep(50 * time.Millisecond)
		default:
			go pass(ctx, client, network, target)
		}
	}
}

// pass copies both ways until both have ended, or one has failed, or the program ends.
func pass(ctx context.Context, client net.Conn, network, target string) {
	defer client.Close()
	server, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, target)
	if err != nil {
		log.Print(err)
		return
	}
	defer server.Close()
	closeBoth := func() { _, _ = client.Close(), server.Close() }
	defer context.AfterFunc(ctx, closeBoth)()
	var both sync.WaitGroup
	both.Go(func() { oneWay(server, client, closeBoth) })
	both.Go(func() { oneWay(client, server, closeBoth) })
	both.Wait()
}

// oneWay copies until from ends, and tells to that it did.
func oneWay(to, from net.Conn, abort func()) {
	if _, err := io.Copy(to, from); err != nil {
		abort()
		return
	}
	if s, ok := to.(stream); !ok || s.CloseWrite() != nil {
		abort()
	}
}
