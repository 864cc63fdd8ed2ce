package openstack

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// How servers are counted, and why so (measured, see docs/adr/0008-count-from-history.md):
//
// os-simple-tenant-usage gives every server of the whole cloud with its project and vm_state in pages of
// 1000, and reads neither Neutron nor volumes for it; /servers/detail does both, /servers names no project.
// And it fails when a cell's database is unavailable, where /servers leaves that cell's servers out in silence.
// It knows only servers that were launched once; those that never were are listed by status.

// CurrentServers calls see for every server that is not deleted: of the whole cloud when projectID is "" (which
// takes the admin role), else of that project, to which the session must be scoped.
func (s *Session) CurrentServers(ctx context.Context, projectID string, see func(domain.CurrentServer)) error {
	if err := s.launched(ctx, projectID, see); err != nil {
		return err
	}
	return s.neverLaunched(ctx, projectID, see)
}

type usage struct {
	Project string `json:"tenant_id"`
	Servers []struct {
		ID    string     `json:"instance_id"`
		State string     `json:"state"`
		Ended *naiveTime `json:"ended_at"`
	} `json:"server_usages"`
}

// launched reads os-simple-tenant-usage for a window in the future: a server that has ended is in no such
// window, whatever the clocks say.
func (s *Session) launched(ctx context.Context, projectID string, see func(domain.CurrentServer)) error {
	nova, err := s.compute(ctx, computeUsagePaging)
	if err != nil {
		return err
	}
	const layout = "2006-01-02T15:04:05"
	tomorrow := time.Now().UTC().Add(24 * time.Hour)
	query := url.Values{
		"limit": {"1000"}, "start": {tomorrow.Format(layout)},
		"end": {tomorrow.Add(time.Hour).Format(layout)},
	}
	path := nova.ServiceURL("os-simple-tenant-usage", projectID)
	if projectID == "" {
		path = nova.ServiceURL("os-simple-tenant-usage")
		query.Set("detailed", "1")
	}
	for {
		var page struct {
			Projects []usage `json:"tenant_usages"`
			Project  usage   `json:"tenant_usage"`
			Links    []link  `json:"tenant_usages_links"`
			Link     []link  `json:"tenant_usage_links"`
		}
		if err := getPage(ctx, nova, path+"?"+query.Encode(), &page); err != nil {
			return classify("nova", err)
		}
		for _, u := range append(page.Projects, page.Project) {
			for _, server := range u.Servers {
				if server.Ended == nil || server.Ended.IsZero() {
					see(domain.CurrentServer{
						ServerID: server.ID, ProjectID: u.Project, State: domain.VMState(server.State),
					})
				}
			}
		}
		marker := nextMarker(append(page.Links, page.Link...))
		if marker == "" || marker == query.Get("marker") {
			return nil
		}
		query.Set("marker", marker)
	}
}

// neverLaunched finds the servers that Nova's usage does not know: still building, or failed before they
// reached a host.
func (s *Session) neverLaunched(ctx context.Context, projectID string, see func(domain.CurrentServer)) error {
	query := url.Values{"status": {"BUILD", "ERROR"}}
	return s.counted(ctx, projectID, query, func(found *server) {
		if found.Launched.IsZero() {
			see(domain.CurrentServer{
				ServerID: found.ID, ProjectID: found.Tenant, State: domain.VMState(found.VMState),
				Created: found.Created,
			})
		}
	})
}

// Changes calls see for every server that changed since the moment, deleted ones included, without its
// actions. projectID as in CurrentServers.
func (s *Session) Changes(ctx context.Context, projectID string, since time.Time, see func(domain.History)) error {
	query := url.Values{"changes-since": {since.UTC().Format(time.RFC3339)}}
	return s.counted(ctx, projectID, query, func(found *server) {
		h := domain.History{
			ServerID: found.ID, ProjectID: found.Tenant, Created: found.Created, Updated: found.Updated,
			State: domain.VMState(found.VMState),
		}
		if found.Status == "DELETED" || found.Status == "SOFT_DELETED" {
			h.Deleted = found.Ended.Time
			if h.Deleted.IsZero() { // it never was on a host
				h.Deleted = found.Updated
			}
		}
		see(h)
	})
}

// counted calls see for every server of a list, of all projects when projectID is "".
func (s *Session) counted(ctx context.Context, projectID string, query url.Values, see func(*server)) error {
	query.Set("limit", strconv.Itoa(watchPage))
	if projectID == "" {
		query.Set("all_tenants", "1")
	}
	return s.eachServer(ctx, computeBase, query, see)
}

type link struct {
	Rel  string `json:"rel"`
	Href string `json:"href"`
}

// nextMarker takes the marker out of a `next` link. The link itself may name a host that only Nova knows.
func nextMarker(links []link) string {
	for _, l := range links {
		if u, err := url.Parse(l.Href); l.Rel == "next" && err == nil {
			return u.Query().Get("marker")
		}
	}
	return ""
}

// An action in Nova's log has a start. When it finished is in `updated_at` from 2.58 on; before that only its events
// say so, which Nova shows to admins, and from 2.51 on to every user who may read the action.

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
			return nil, apperr.New(apperr.BadGateway, "nova returned the same page of actions twice (marker ignored)")
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
