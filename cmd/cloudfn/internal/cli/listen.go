package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// listening is what callbacks listen is told.
type listening struct {
	subject
	port      int
	publicURL string
	once      bool
	count     int
}

func (a *app) listenCommand() *cobra.Command {
	var l listening
	cmd := &cobra.Command{
		Use: "listen", Short: "Receive events here, verify them, and print them", Args: cobra.NoArgs,
		Long: `Receive events here, for trying: listen at a port of this machine's loopback address, register a callback that sends there, consent
to it, and print each event whose signature is right: when, type, subject, name, state. When it ends, the callback is deleted.

cloudfn must reach the port. A daemon on this machine does when its operator has allowed it, with CALLBACK_ALLOW=127.0.0.0/8. For
one elsewhere, lead a public address to the port, and give it by --public-url.`,
		Example:     "  cloudfn callbacks listen --for ORDER\n  cloudfn callbacks listen --events cloudfn.instance.state.v1 -o json | jq .data",
		Annotations: calls("createCallback", "getCallback", "listCallbacks", "listDeliveries", "deleteCallback", "getOrder"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if l.once {
				l.count = 1
			}
			if l.order != "" && len(l.events) > 0 && !slices.Contains(l.events, domain.OrderEvent) {
				return wrong("--for ends by an event of the order: name %s in --events, too", domain.OrderEvent)
			}
			return a.listen(cmd.Context(), l)
		},
	}
	l.flags(a, cmd)
	flags := cmd.Flags()
	flags.StringVar(&l.order, "for", "", "only what happens to this order, until it is settled")
	flags.IntVar(&l.port, "port", 0, "port to listen at (default any that is free)")
	flags.StringVar(&l.publicURL, "public-url", "", "URL that leads to the port, when cloudfn is not on this machine")
	flags.BoolVar(&l.once, "once", false, "end after one event")
	flags.IntVar(&l.count, "count", 0, "end after so many events")
	cmd.MarkFlagsMutuallyExclusive("once", "count")
	_ = cmd.RegisterFlagCompletionFunc("for", a.complete(a.orderIDs))
	return cmd
}

// listen receives events until there is an end to it.
func (a *app) listen(ctx context.Context, l listening) error {
	signal.Ignore(syscall.SIGPIPE) // as | head makes it; what was begun is to be ended also then
	client, err := a.api(ctx)
	if err != nil {
		return err
	}
	port, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(l.port)))
	if err != nil {
		return fmt.Errorf("--port %d: %w", l.port, err)
	}
	defer func() { _ = port.Close() }()
	secret := webhook.NewSecret()
	path := "/" + rand.Text()
	r, err := newReceiver(a, path, secret, l)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(port) }()
	defer stopServing(ctx, server)

	base := "http://" + port.Addr().String()
	if l.publicURL != "" {
		base = strings.TrimSuffix(l.publicURL, "/")
	}
	request, revealed := l.request(base+path), secret.Reveal()
	request.Secret = &revealed
	id, err := a.register(ctx, client, request)
	if err != nil {
		return notReachable(err, l.publicURL)
	}
	fmt.Fprintf(a.err, "Listening at %s as callback %s; Ctrl-C ends it\n", base+path, id)
	err = a.receive(ctx, client, l, r, id)
	if gone := a.forget(ctx, client, id); gone != nil {
		return gone
	}
	return err
}

// register makes the callback. Ctrl-C lets it have its answer: a callback whose id is not known cannot be deleted. When the answer
// is lost, the callback is found by its URL, which nothing else has.
func (a *app) register(ctx context.Context, client *api.Client, request api.CallbackRequest) (string, error) {
	ctx = context.WithoutCancel(ctx)
	sending, cancel := context.WithTimeoutCause(ctx, grace, late{fmt.Errorf("no answer within %s", grace)})
	defer cancel()
	made, _, err := api.Send[api.CallbackWithSecret](sending, client, http.MethodPost, "/v1/callbacks", request)
	if !lost(err) {
		return made.Value.ID, err
	}
	looking, end := context.WithTimeoutCause(ctx, grace, late{fmt.Errorf("no answer within %s", grace)})
	defer end()
	own := func(c api.Callback) bool { return c.URL == request.URL }
	found, unknown := api.Select(looking, client, "/v1/callbacks", nil, "callbacks", 1, own)
	switch {
	case unknown != nil:
		return "", fmt.Errorf("%w; a callback of %s may be there: %s callbacks list shows it", err, request.URL, a.name)
	case len(found) == 0:
		return "", err
	}
	return found[0].Value.ID, nil
}

// lost says whether what was asked for may have been done, although no answer of the API says so.
func lost(err error) bool {
	answer, ok := errors.AsType[*api.Error](err)
	return ok && (answer.Broke || answer.Status >= http.StatusInternalServerError) || errors.Is(err, context.DeadlineExceeded)
}

// stopServing lets the answers out that are on their way.
func stopServing(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), parting)
	defer cancel()
	_ = server.Shutdown(ctx)
}

// forget deletes the callback, also after Ctrl-C.
func (a *app) forget(ctx context.Context, client *api.Client, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*parting)
	defer cancel()
	_, err := client.Do(ctx, http.MethodDelete, callbackPath(id), nil, nil)
	if answer, ok := errors.AsType[*api.Error](err); ok && answer.Status == http.StatusNotFound {
		return nil // somebody else has
	}
	if err != nil {
		return fmt.Errorf("%w; the callback is still there: %s callbacks delete %s", err, a.name, id)
	}
	return nil
}

// notReachable says what to do when cloudfn does not send to this machine.
func notReachable(err error, publicURL string) error {
	answer, ok := errors.AsType[*api.Error](err)
	if !ok || publicURL != "" || answer.Status != http.StatusBadRequest {
		return err
	}
	for _, field := range answer.Fields {
		if field.Field == "url" {
			return fmt.Errorf("%w: this cloudfn may not send to this machine; its operator can allow it by CALLBACK_ALLOW=127.0.0.0/8, or give --public-url with an address that leads here", err)
		}
	}
	return err
}

// parting is how long what is on its way may take, when there is nothing else to wait for.
const parting = 5 * time.Second

// hint is after how long without a sign of cloudfn its reason is asked for.
const hint = 10 * time.Second

// receive waits for an end: of the events that are wanted, of the order, or of the user's patience.
func (a *app) receive(ctx context.Context, client *api.Client, l listening, r *receiver, id string) error {
	settled, err := a.settledAlready(ctx, client, l)
	if err != nil {
		return err
	}
	impatient := time.NewTicker(hint)
	defer impatient.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.done:
			return r.verdict()
		case <-settled:
			if a.due(ctx, client, id) {
				settled = time.After(parting)
				continue
			}
			fmt.Fprintln(a.err, "The order was settled before")
			return r.verdict()
		case <-impatient.C:
			if r.asked() {
				impatient.Stop()
				continue
			}
			if c, err := api.One[api.Callback](ctx, client, callbackPath(id), nil); err == nil && c.Value.Reason != nil {
				fmt.Fprintln(a.err, "No consent was asked for yet:", output.Clean(*c.Value.Reason))
			}
		}
	}
}

// settledAlready is for an order that is waited for: it may have come to its end before anybody listened. The event that says so
// may still be on its way.
func (a *app) settledAlready(ctx context.Context, client *api.Client, l listening) (<-chan time.Time, error) {
	if l.order == "" {
		return nil, nil //nolint:nilnil // nothing is waited for
	}
	p := pursuit{client: client, id: l.order, connection: l.connection}
	order, err := p.look(ctx)
	if err != nil || order.Value.Status == api.OrderStatusRunning {
		return nil, err
	}
	return time.After(parting), nil
}

// due says whether something is still on its way to the callback.
func (a *app) due(ctx context.Context, client *api.Client, id string) bool {
	found, err := api.List[api.Delivery](ctx, client, callbackPath(id, "deliveries"), url.Values{"status": {string(api.Due)}}, "deliveries", 1)
	return err == nil && len(found) > 0
}
