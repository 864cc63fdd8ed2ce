package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ResourceFlavors are the named templates of managed resources. A resource keeps what it took from its template,
// whatever becomes of it.
type ResourceFlavors struct{ DB *DB }

const (
	flavorColumns = `
id, project_id, domain_id, user_id, name, kind, provider, description, spec, version, created_at, updated_at`

	// A template has no event, and is as large as 20 of them.
	countFlavorSQL = "select count_events(20)"

	insertFlavorSQL = `
insert into flavors (project_id, name, id, domain_id, user_id, kind, provider, description, spec)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict do nothing
returning ` + flavorColumns

	changeFlavorSQL = `
update flavors set user_id = $4, kind = $5, provider = $6, description = $7, spec = $8,
    version = version + is_other::int, updated_at = case when is_other then clock_timestamp() else updated_at end
from (select project_id as p, name as n, (kind, provider, description, spec) is distinct from ($5, $6, $7, $8::jsonb)
          as is_other from flavors where project_id = $1 and name = $2) old
where project_id = old.p and name = old.n and version = $3
returning ` + flavorColumns

	listFlavorsSQL = "select " + flavorColumns + ` from flavors
where project_id = $1 and ($2 = '' or kind = $2) and name > $3 order by name limit $4`
)

// Create stores a flavor. It is a Conflict when the project has one of the name, or as many as it may have.
func (s ResourceFlavors) Create(
	ctx context.Context, made domain.ResourceFlavor, perProject int,
) (domain.ResourceFlavor, error) {
	return changeValue(ctx, s.DB, func(tx pgx.Tx) (domain.ResourceFlavor, error) {
		if err := lockName(ctx, tx, "flavors", made.ProjectID); err != nil {
			return made, err
		}
		if err := roomForFlavor(ctx, tx, made.ProjectID, perProject); err != nil {
			return made, err
		}
		if _, err := exec(ctx, tx, countFlavorSQL); err != nil {
			return made, err
		}
		stored, err := queryOne[domain.ResourceFlavor](ctx, tx, insertFlavorSQL, made.ProjectID, made.Name,
			made.ID, made.DomainID, made.UserID, made.Kind, made.Provider, made.Description, made.Spec)
		return stored, ifNone(err, apperr.New(apperr.Conflict, "the project has a flavor %q already", made.Name))
	})
}

// CheckRoom rejects another flavor of a project that has as many as it may have; 0 = unlimited. Create checks it again.
func (s ResourceFlavors) CheckRoom(ctx context.Context, projectID string, perProject int) error {
	return roomForFlavor(ctx, s.DB.pool, projectID, perProject)
}

func roomForFlavor(ctx context.Context, db querier, projectID string, perProject int) error {
	return fits(ctx, db, perProject, "flavors in a project (MANAGED_PER_PROJECT): delete some first",
		"select count(*) from flavors where project_id = $1", projectID)
}

// Get reads a flavor of the project.
func (s ResourceFlavors) Get(ctx context.Context, projectID, name string) (domain.ResourceFlavor, error) {
	found, err := queryOne[domain.ResourceFlavor](ctx, s.DB.pool,
		"select "+flavorColumns+" from flavors where project_id = $1 and name = $2", projectID, name)
	return found, orNotFound(err, "the project has no flavor %q", name)
}

// List reads a page of the project's flavors by name.
func (s ResourceFlavors) List(
	ctx context.Context, projectID string, q domain.FlavorQuery,
) ([]domain.ResourceFlavor, error) {
	return queryAll[domain.ResourceFlavor](ctx, s.DB.pool, listFlavorsSQL, projectID, q.Kind, q.Marker, q.Limit)
}

// Change replaces kind, provider, description and spec of a flavor. It is domain.ErrChanged unless the stored version
// is that of the flavor given. Resources that were declared with it stay as they are.
func (s ResourceFlavors) Change(ctx context.Context, f domain.ResourceFlavor) (domain.ResourceFlavor, error) {
	return changeValue(ctx, s.DB, func(tx pgx.Tx) (domain.ResourceFlavor, error) {
		if _, err := exec(ctx, tx, countFlavorSQL); err != nil {
			return f, err
		}
		stored, err := queryOne[domain.ResourceFlavor](ctx, tx, changeFlavorSQL, f.ProjectID, f.Name, f.Version,
			f.UserID, f.Kind, f.Provider, f.Description, f.Spec)
		return stored, ifNone(err, domain.ErrChanged)
	})
}

const (
	flavorUsers = `from managed where project_id = $1 and flavor = $2 and request <> 'delete'`

	deleteFlavorSQL = `
delete from flavors where project_id = $1 and name = $2 and version = $3 and not exists (select ` + flavorUsers + ")"

	flavorUsersSQL = "select kind || ' ' || name " + flavorUsers + " order by id"
)

// mostUsers is how many of the resources that use a flavor an error names.
const mostUsers = 3

// Delete deletes a flavor. It is a Conflict while the declarations of resources name it, and domain.ErrChanged unless
// the stored version is that of the flavor given.
func (s ResourceFlavors) Delete(ctx context.Context, f domain.ResourceFlavor) error {
	n, err := exec(ctx, s.DB.pool, deleteFlavorSQL, f.ProjectID, f.Name, f.Version)
	if err != nil || n > 0 {
		return err
	}
	users, err := queryColumn[string](ctx, s.DB.pool, flavorUsersSQL, f.ProjectID, f.Name)
	if err != nil {
		return err
	}
	if len(users) == 0 {
		return domain.ErrChanged
	}
	text := strings.Join(users[:min(mostUsers, len(users))], ", ")
	if more := len(users) - mostUsers; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return apperr.New(apperr.Conflict, "the flavor %q is used by %s: declare them without it, or delete them first",
		f.Name, text)
}
