package openstack

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Nova's scheduler chooses where a server moves to. Its answer says that the migration has begun; how it ends is in the
// server's host, and in Nova's record of the migration. Moving servers is by default for the cloud's admins, and a lock
// does not keep those.

// LiveMigrate begins to move a running or paused server to another host. It is a Conflict in a state that does not
// allow it, such as while Nova moves it already.
func (s *Session) LiveMigrate(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeLiveMigrate, map[string]any{
		"os-migrateLive": map[string]any{"host": nil, "block_migration": "auto"},
	}, http.StatusAccepted)
}

// ColdMigrate begins to move a stopped server to another host. There it is in VERIFY_RESIZE until ConfirmMigration. It
// is a Conflict as LiveMigrate is.
func (s *Session) ColdMigrate(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"migrate": nil}, http.StatusAccepted)
}

// ConfirmMigration frees what a server in VERIFY_RESIZE has left on the host that it was on. It succeeds when that is
// under way already.
func (s *Session) ConfirmMigration(ctx context.Context, id string) error {
	err := s.migrate(ctx, id, computeBase, map[string]any{"confirmResize": nil}, http.StatusNoContent)
	code := apperr.CodeOf(err)
	if code == apperr.Conflict || code == apperr.Invalid { // "Instance has not been resized."
		return nil
	}
	return err
}

func (s *Session) migrate(ctx context.Context, id, microversion string, action map[string]any, want int) error {
	nova, err := s.compute(ctx, microversion)
	if err != nil {
		return err
	}
	_, err = nova.Post(ctx, nova.ServiceURL("servers", url.PathEscape(id), "action"), action, nil,
		&gophercloud.RequestOpts{OkCodes: []int{want}})
	return classify("nova", err)
}

// migration is an entry of Nova's records.
type migration struct {
	ID     int    `json:"id"`
	Server string `json:"instance_uuid"`
	Source string `json:"source_compute"`
	Target string `json:"dest_compute"`
	Status string `json:"status"`
	Type   string `json:"migration_type"`
}

// LastMigration reads Nova's newest record of a server leaving a host. found is false without one.
func (s *Session) LastMigration(ctx context.Context, id, host string) (last domain.Migration, found bool, err error) {
	nova, err := s.compute(ctx, computeMigrations)
	if err != nil {
		return last, false, err
	}
	var body struct {
		Migrations []migration `json:"migrations"`
	}
	address := nova.ServiceURL("os-migrations") + "?" + url.Values{"instance_uuid": {id}}.Encode()
	if err := get(ctx, nova, address, &body); err != nil {
		return last, false, err
	}
	body.Migrations = slices.DeleteFunc(body.Migrations, func(m migration) bool {
		return m.Server != id || m.Source != host
	})
	if len(body.Migrations) == 0 {
		return last, false, nil
	}
	m := slices.MaxFunc(body.Migrations, func(a, b migration) int { return cmp.Compare(a.ID, b.ID) })
	return domain.Migration{Status: m.Status, Target: m.Target, IsResize: m.Type == "resize"}, true, nil
}

// MigrationFault says in Nova's words why the last migration of a server failed; "" when Nova does not say it.
func (s *Session) MigrationFault(ctx context.Context, id string) (string, error) {
	entries, err := s.actionLog(ctx, id, computeActionList)
	if err != nil {
		return "", err
	}
	n := slices.IndexFunc(entries, func(a logged) bool { return a.Name == "migrate" || a.Name == "live-migration" })
	if n < 0 || entries[n].Message == "" {
		return "", nil
	}
	var body struct {
		Action logged `json:"instanceAction"`
	}
	err = s.getNova(ctx, computeActionFault, &body, "servers", id, "os-instance-actions", entries[n].RequestID)
	if code := apperr.CodeOf(err); code == apperr.Unsupported || code == apperr.NotFound {
		return "", nil
	}
	for _, e := range body.Action.Events {
		if e.Details != "" {
			return clean(e.Details), err
		}
	}
	return "", err
}
