// Command imagetool is what the cluster needs to have images without a container engine: a small registry that
// keeps what was pushed to it, two kinds of images to push, and a forwarder of connections.
//
//	imagetool serve ADDRESS FOLDER
//	imagetool base REFERENCE
//	imagetool push REFERENCE BINARY
//	imagetool forward ADDRESS TARGET     (TARGET: host:port, or unix:/path)
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
)

var errUsage = errors.New("usage: imagetool serve ADDRESS FOLDER | base REFERENCE | push REFERENCE BINARY | " +
	"forward ADDRESS TARGET")

func main() {
	log.SetFlags(log.LstdFlags | log.Lmsgprefix)
	log.SetPrefix("imagetool: ")
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	switch {
	case verb == "serve" && len(args) == 2:
		return serve(ctx, args[0], args[1])
	case verb == "base" && len(args) == 1:
		return pushBase(ctx, args[0])
	case verb == "push" && len(args) == 2:
		return pushBinary(ctx, args[0], args[1])
	case verb == "forward" && len(args) == 2:
		return forward(ctx, args[0], args[1])
	default:
		return errUsage
	}
}
