package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// busyFor is how long cloudfn may be at work on an action whose first answer was lost: a stopped server is started before it is rebuilt.
const busyFor = 5 * time.Minute

// idFlag lets a user send an action again whose answer was lost.
func idFlag(cmd *cobra.Command, id *string) {
	cmd.Flags().StringVar(id, "id", "", "id of the action, to send one again whose answer was lost: it is done once (default a new one)")
}

// send sends an action on one server under an id. When the connection breaks off it sends the same again: it is the same action then.
func (s *servers) send(ctx context.Context, client *api.Client, server string, body api.ServerAction) (api.Item[outcome], error) {
	if body.ID == nil {
		body.ID = new(uuid.NewString())
	}
	var broke bool
	began := time.Now()
	for n := 0; ; {
		sent, _, err := api.Send[outcome](ctx, client, http.MethodPost, "/v1/servers/"+server+"/actions", body)
		if err == nil {
			return sent, nil
		}
		failure, ok := errors.AsType[*api.Error](err)
		broke = broke || ok && failure.Broke
		pause := time.Duration(n+1) * time.Second
		switch seconds, busy := busyWith(failure); {
		case broke && busy && time.Since(began) < busyFor:
			pause = seconds
		case broke && passing(err) && n < resends:
			n++
			fmt.Fprintf(s.err, "%s; sending the same action again\n", output.Clean(err.Error()))
		case broke && (passing(err) || busy):
			return sent, fmt.Errorf("%w. To go on with the same action add --id %s", err, *body.ID)
		default:
			return sent, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return sent, context.Cause(ctx)
		}
	}
}

// busyWith says whether cloudfn works on the action that was sent before, and when to ask again.
func busyWith(failure *api.Error) (pause time.Duration, busy bool) {
	if failure == nil || failure.Status != http.StatusConflict {
		return 0, false
	}
	seconds, err := strconv.Atoi(failure.Retry)
	return time.Duration(seconds) * time.Second, err == nil
}
