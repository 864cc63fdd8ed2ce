package openstack

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	servertags "github.com/gophercloud/gophercloud/v2/openstack/compute/v2/tags"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ResizeServer gives a server another flavor, by default on another host. It waits in VERIFY_RESIZE for
// ConfirmMigration, and its old host keeps room for it until then.
func (s *Session) ResizeServer(ctx context.Context, id, flavorID string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return servers.Resize(ctx, nova, id, servers.ResizeOpts{FlavorRef: flavorID}).ExtractErr()
	})
}

// TagServer gives a server a tag, if it has not got it. Nova allows it while the server is on a host.
func (s *Session) TagServer(ctx context.Context, id, tag string) error {
	nova, err := s.compute(ctx, computeTags)
	if err != nil {
		return err
	}
	return classify("nova", servertags.Add(ctx, nova, id, tag).ExtractErr())
}

// UntagServer removes a tag of a server, if it has it.
func (s *Session) UntagServer(ctx context.Context, id, tag string) error {
	nova, err := s.compute(ctx, computeTags)
	if err != nil {
		return err
	}
	err = classify("nova", servertags.Delete(ctx, nova, id, tag).ExtractErr())
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

// LockServer keeps the server's owners from changing it. Only the cloud's admins can unlock what an admin has locked.
func (s *Session) LockServer(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"lock": nil}, http.StatusAccepted)
}

// UnlockServer ends the lock of a server, also its owner's own.
func (s *Session) UnlockServer(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"unlock": nil}, http.StatusAccepted)
}

// UnrescueServer begins to boot a server in RESCUE from its own disk again.
func (s *Session) UnrescueServer(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"unrescue": nil}, http.StatusAccepted)
}

// ResetServer makes a server in ERROR active for Nova, without any change on its host. By default only the cloud's
// admins may.
func (s *Session) ResetServer(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"os-resetState": map[string]any{"state": "active"}},
		http.StatusAccepted)
}

// TaggedServers lists a project's servers with a tag. Another project than the session's takes the admin role.
func (s *Session) TaggedServers(ctx context.Context, projectID, tag string) ([]domain.Server, error) {
	return s.serversOf(ctx, projectID, "tags", tag)
}

// UnplacedServers lists a project's servers in the statuses in which a server may have no host: being built, in ERROR
// or shelved. Another project than the session's takes the admin role.
func (s *Session) UnplacedServers(ctx context.Context, projectID string) ([]domain.Server, error) {
	return s.serversOf(ctx, projectID, "status", "BUILD", "ERROR", "SHELVED_OFFLOADED")
}

func (s *Session) serversOf(ctx context.Context, projectID, filter string, values ...string) ([]domain.Server, error) {
	query := url.Values{
		"limit": {strconv.Itoa(watchPage)}, "all_tenants": {"1"}, "project_id": {projectID}, filter: values,
	}
	out := []domain.Server{}
	err := s.eachServer(ctx, computeFlavorInside, query, func(found *server) { out = append(out, found.domain()) })
	return out, err
}
