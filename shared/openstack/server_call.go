package openstack

import (
	"context"
	"net/http"
	"net/url"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// serverCall is Nova's call for an action on a server.
type serverCall struct {
	version string
	body    map[string]any
}

// serverCalls are the calls of actions without a method of their own. What they need and do is in domain's table.
var serverCalls = map[domain.Action]func(domain.Server, domain.ActionArguments) serverCall{
	domain.Pause:   plainCall("pause"),
	domain.Unpause: plainCall("unpause"),
	domain.Suspend: plainCall("suspend"),
	domain.Resume:  plainCall("resume"),
	domain.Lock:    lockCall,
	domain.Unlock:  plainCall("unlock"),
}

// plainCall is a call without arguments.
func plainCall(name string) func(domain.Server, domain.ActionArguments) serverCall {
	return func(domain.Server, domain.ActionArguments) serverCall {
		return serverCall{version: computeBase, body: map[string]any{name: nil}}
	}
}

func lockCall(_ domain.Server, args domain.ActionArguments) serverCall {
	if args.Reason == "" {
		return serverCall{version: computeBase, body: map[string]any{"lock": nil}}
	}
	return serverCall{
		version: computeLockReason, body: map[string]any{"lock": map[string]any{"locked_reason": args.Reason}},
	}
}

// ActOnServer begins an action on a server, as Nova has just shown it. An error has Nova's own words.
func (s *Session) ActOnServer(
	ctx context.Context, server domain.Server, action domain.Action, args domain.ActionArguments,
) error {
	if action == domain.Rename {
		return s.RenameServer(ctx, server.ID, args.Name)
	}
	of, ok := serverCalls[action]
	if !ok {
		return apperr.New(apperr.Internal, "there is no call to Nova for the action %s", action)
	}
	call := of(server, args)
	nova, err := s.compute(ctx, call.version)
	if err != nil {
		return err
	}
	_, err = nova.Post(ctx, nova.ServiceURL("servers", url.PathEscape(server.ID), "action"), call.body, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusAccepted, http.StatusNoContent}})
	return classify("nova", err)
}
