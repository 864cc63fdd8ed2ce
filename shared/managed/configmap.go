package managed

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ConfigmapDriver keeps files for servers. They have no object in OpenStack: the declaration itself is all there is,
// and a server gets the files when it is made.
type ConfigmapDriver struct{}

// Kinds implements Driver.
func (ConfigmapDriver) Kinds() []domain.Kind { return []domain.Kind{domain.KindConfigmap} }

// Needs implements Driver.
func (ConfigmapDriver) Needs(json.RawMessage) []Ref { return nil }

// List implements Driver. The object of a member is the member itself, until it is being deleted.
func (ConfigmapDriver) List(_ context.Context, _ Session, members []domain.Member) (map[uuid.UUID]Object, error) {
	found := make(map[uuid.UUID]Object, len(members))
	for _, m := range members {
		if m.ObjectID != "" && m.Status != domain.MemberDeleting {
			found[m.ID] = Object{ID: m.ObjectID, State: ObjectReady, CreatedAt: m.CreatedAt}
		}
	}
	return found, nil
}

// Find implements Driver.
func (ConfigmapDriver) Find(_ context.Context, _ Session, id string) (Object, error) {
	return Object{}, apperr.New(apperr.NotFound, "there is no object %s", id)
}

// Create implements Driver.
func (ConfigmapDriver) Create(_ context.Context, _ Session, in Wanted) (string, error) {
	return in.Member.ID.String(), nil
}

// Differences implements Driver. The servers that name it differ.
func (ConfigmapDriver) Differences(Wanted, Object) []Difference { return nil }

// Update implements Driver.
func (ConfigmapDriver) Update(context.Context, Session, Wanted, Object, []Difference) error {
	return nil
}

// Delete implements Driver.
func (ConfigmapDriver) Delete(context.Context, Session, Object) error { return nil }
