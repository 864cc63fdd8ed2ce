package openstack

import (
	"context"
	"net/url"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// An action in Nova's log has a start. When it finished is in `updated_at` from 2.58 on; before that only its events
// say so, which Nova shows to admins, and from 2.51 on to everybody who may see the action.

// logged is an entry of a server's action log.
type logged struct {
	Name      string    `json:"action"`
	RequestID string    `json:"request_id"`
	Start     naiveTime `json:"start_time"`
	Updated   naiveTime `json:"updated_at"`
	Message   string    `json:"message"` // "Error", or null
	Events    []struct {
		Finish  naiveTime `json:"finish_time"` // null until then
		Details string    `json:"details"`     // why it failed
	} `json:"events"`
}

// Actions reads the action log of a server, of a deleted one too. An action has no Finish when Nova does not say it.
func (s *Session) Actions(ctx context.Context, serverID string) ([]domain.LoggedAction, error) {
	if s.olderNova.Load() {
		return s.olderActions(ctx, serverID)
	}
	entries, err := s.actionLog(ctx, serverID, computeActionTimes)
	if apperr.CodeOf(err) == apperr.Unsupported {
		s.olderNova.Store(true)
		return s.olderActions(ctx, serverID)
	}
	actions := make([]domain.LoggedAction, len(entries))
	for i, a := range entries {
		actions[i] = a.domain(a.Updated.Time)
	}
	return actions, err
}

func (a *logged) domain(finish time.Time) domain.LoggedAction {
	out := domain.LoggedAction{Name: a.Name, Start: a.Start.Time, Failed: a.Message != ""}
	if !finish.Before(a.Start.Time) {
		out.Finish = finish
	}
	return out
}

// actionLog reads all pages of a server's action log.
func (s *Session) actionLog(ctx context.Context, serverID, microversion string) ([]logged, error) {
	nova, err := s.compute(ctx, microversion)
	if err != nil {
		return nil, err
	}
	var entries []logged
	path := nova.ServiceURL("servers", url.PathEscape(serverID), "os-instance-actions")
	for query, marker := "", ""; ; {
		var page struct {
			Actions []logged `json:"instanceActions"`
			Links   []link   `json:"links"`
		}
		if err = get(ctx, nova, path+query, &page); err != nil {
			return nil, err
		}
		entries = append(entries, page.Actions...)
		next := nextMarker(page.Links)
		if next == "" || len(page.Actions) == 0 {
			return entries, nil
		}
		if next == marker {
			return nil, apperr.New(apperr.BadGateway, "nova gives the same page of actions for ever")
		}
		marker, query = next, "?"+url.Values{"marker": {next}}.Encode()
	}
}

// olderActions takes the ends of the actions from their events, one call for each action that can change the state.
func (s *Session) olderActions(ctx context.Context, serverID string) ([]domain.LoggedAction, error) {
	entries, err := s.actionLog(ctx, serverID, computeActionList)
	if err != nil {
		return nil, err
	}
	actions := make([]domain.LoggedAction, len(entries))
	for i, a := range entries {
		var finish time.Time
		if domain.ChangesState(a.Name) {
			if finish, err = s.lastEvent(ctx, serverID, a.RequestID); err != nil {
				return nil, err
			}
		}
		actions[i] = a.domain(finish)
	}
	return actions, nil
}

// lastEvent is when the last event of an action finished; zero when one has not, or Nova shows none.
func (s *Session) lastEvent(ctx context.Context, serverID, requestID string) (last time.Time, err error) {
	for _, microversion := range []string{computeActionEvents, computeActionList} {
		var body struct {
			Action logged `json:"instanceAction"`
		}
		err = s.getNova(ctx, microversion, &body, "servers", serverID, "os-instance-actions", requestID)
		switch apperr.CodeOf(err) {
		case apperr.Unsupported:
			continue
		case apperr.NotFound:
			return time.Time{}, nil // purged meanwhile
		}
		for _, e := range body.Action.Events {
			if e.Finish.IsZero() {
				return time.Time{}, nil
			}
			if e.Finish.After(last) {
				last = e.Finish.Time
			}
		}
		return last, err
	}
	return time.Time{}, nil
}
