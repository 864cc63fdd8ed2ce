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

	domain.Resize:        resizeCall,
	domain.ConfirmResize: plainCall("confirmResize"),
	domain.RevertResize:  plainCall("revertResize"),
	domain.Rebuild:       rebuildCall,
	domain.Unrescue:      plainCall("unrescue"),
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

func resizeCall(_ domain.Server, args domain.ActionArguments) serverCall {
	return serverCall{
		version: computeBase, body: map[string]any{"resize": map[string]any{"flavorRef": args.Flavor}},
	}
}

// rebuildCall keeps the server's name, key, metadata and user_data.
func rebuildCall(server domain.Server, args domain.ActionArguments) serverCall {
	call := serverCall{
		version: computeBase, body: map[string]any{"rebuild": map[string]any{"imageRef": args.Image}},
	}
	if server.Image == nil {
		call.version = computeRebuildVolume
	}
	return call
}

// RescueServer begins to boot a server from another image ("" = Nova's choice), with a password that Nova makes, or ""
// where it makes none. The hypervisor may not set it. It is in Nova's answer alone.
func (s *Session) RescueServer(
	ctx context.Context, server domain.Server, imageID string,
) (password domain.Secret, err error) {
	version, rescue := computeBase, map[string]any{}
	if server.Image == nil {
		version = computeRescueVolume
	}
	if imageID != "" {
		rescue["rescue_image_ref"] = imageID
	}
	nova, err := s.compute(ctx, version)
	if err != nil {
		return "", err
	}
	var answer struct {
		AdminPass string `json:"adminPass"`
	}
	_, err = nova.Post(ctx, nova.ServiceURL("servers", url.PathEscape(server.ID), "action"),
		map[string]any{"rescue": rescue}, &answer,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusAccepted}})
	return domain.Secret(answer.AdminPass), classify("nova", err)
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
	err = classify("nova", err)
	isEnd := action == domain.ConfirmResize || action == domain.RevertResize
	if isEnd && apperr.CodeOf(err) == apperr.Invalid { // "Instance has not been resized.", or it is being confirmed
		return apperr.Wrap(apperr.Conflict, err, "%s", apperr.As(err).Message)
	}
	return err
}
