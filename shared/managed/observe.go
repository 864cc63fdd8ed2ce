package managed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// listing is one paged list of the objects of a driver in a region.
type listing struct {
	driver Driver
	region string
}

// observe opens the sessions and lists the marked objects: one list for each driver and region, whatever the number of
// resources.
func (r *round) observe(ctx context.Context) error {
	if err := r.openAll(ctx); err != nil {
		return err
	}
	began := time.Now()
	groups, order, named := map[listing][]*resource{}, []listing{}, r.named()
	for _, m := range r.resources {
		if !m.isLookedAt && !named[Ref{m.Kind, m.Name}] {
			continue
		}
		if m.driver == nil {
			m.notListed = apperr.New(apperr.Unsupported, "the kind %s is not supported here", m.Kind)
			continue
		}
		key := listing{m.driver, m.Schedule.Region}
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], m)
	}
	objects := map[uuid.UUID]Object{}
	for _, key := range order {
		r.list(ctx, key.driver, groups[key], objects)
	}
	r.listed = time.Since(began)
	all := make([]domain.Managed, len(r.resources))
	for n, m := range r.resources {
		all[n] = m.Managed
	}
	r.around = NewAround(all, objects)
	for _, m := range r.resources {
		if m.isLookedAt && m.noLogin == nil && m.notListed == nil {
			r.match(ctx, m, objects)
		}
	}
	return nil
}

// named are the resources that those name which are looked at.
func (r *round) named() map[Ref]bool {
	named := map[Ref]bool{}
	for _, m := range r.resources {
		if !m.isLookedAt {
			continue
		}
		for _, ref := range m.needs() {
			named[ref] = true
		}
	}
	return named
}

// list lists the objects of one driver in one region, with the first session that there is: all of a project show the
// same.
func (r *round) list(ctx context.Context, driver Driver, group []*resource, objects map[uuid.UUID]Object) {
	n := slices.IndexFunc(group, func(m *resource) bool { return m.noLogin == nil })
	if n < 0 {
		return
	}
	var members []domain.Member
	for _, m := range group {
		members = append(members, m.Members...)
	}
	found, err := r.find(ctx, driver, group[n].session, members)
	if err != nil {
		r.forget(group[n], err)
		r.problem = err
		for _, m := range group {
			m.notListed = err
		}
		return
	}
	maps.Copy(objects, found)
}

// mostFinds is up to how many objects are read one by one, instead of in a list of all.
const mostFinds = 10

// find reads the objects of members: by their ids if they are few, and made; else by a list.
func (r *round) find(
	ctx context.Context, driver Driver, s Session, members []domain.Member,
) (map[uuid.UUID]Object, error) {
	confirmer, ok := driver.(Confirmer)
	if !ok || len(members) > mostFinds || slices.ContainsFunc(members, func(m domain.Member) bool {
		return m.Status != domain.MemberReady || m.ObjectID == ""
	}) {
		return driver.List(ctx, s, members)
	}
	found := make(map[uuid.UUID]Object, len(members))
	for _, m := range members {
		o, err := confirmer.Find(ctx, s, m.ObjectID)
		switch {
		case apperr.CodeOf(err) == apperr.NotFound:
			r.deleted[m.ID] = true
		case err != nil:
			return nil, err
		case o.Raw == nil:
			found[m.ID] = unlisted(m)
		default:
			found[m.ID] = o
		}
	}
	return found, nil
}

// unlisted is an object that exists. Nothing else is known of it.
func unlisted(m domain.Member) Object {
	return Object{ID: m.ObjectID, State: ObjectWorking, Reason: "no list shows it"}
}

// match gives each member its object and their differences.
func (r *round) match(ctx context.Context, m *resource, objects map[uuid.UUID]Object) {
	for _, member := range m.Members {
		s := seen{member: member}
		s.object, s.isFound = objects[member.ID]
		if !s.isFound && member.ObjectID != "" && !r.deleted[member.ID] {
			s.object, s.isFound = r.confirm(ctx, m, member)
		}
		if s.isFound && s.object.State == ObjectReady && member.Status != domain.MemberDeleting && !m.isDeleting() {
			s.differences = m.driver.Differences(r.wanted(m, member), s.object)
			if m.target().isDeployment && m.target().surges {
				replaceDisrupting(s.differences)
			}
		}
		m.members = append(m.members, s)
	}
}

// replaceDisrupting has objects replaced that could be changed only while they do not work: none may be missing.
func replaceDisrupting(differences []Difference) {
	for n := range differences {
		if differences[n].Way == InPlace && differences[n].Disrupts && !differences[n].Continues {
			differences[n].Way = Replace
		}
	}
}

// confirm asks for an object that no listing shows: some leave out objects that exist.
func (r *round) confirm(ctx context.Context, m *resource, member domain.Member) (Object, bool) {
	confirmer, ok := m.driver.(Confirmer)
	if !ok {
		return Object{}, false
	}
	o, err := confirmer.Find(ctx, m.session, member.ObjectID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		return Object{}, false
	case err == nil && o.Raw != nil:
		return o, true
	}
	return unlisted(member), true
}

// waitsFor says what a resource has to wait for: while it is deleted, for those that name it; else for those that it
// names.
func (r *round) waitsFor(m *resource) string {
	if m.isDeleting() {
		if user, ok := r.userOf(Ref{m.Kind, m.Name}); ok {
			return fmt.Sprintf("it is used by %s", user)
		}
		return ""
	}
	for _, ref := range m.needs() {
		needed, ok := r.around.Resource(ref.Kind, ref.Name)
		switch {
		case !ok:
			return fmt.Sprintf("there is no %s", ref)
		case needed.Request == domain.ManagedDelete:
			return fmt.Sprintf("%s is being deleted", ref)
		case needed.ObservedRevision == 0:
			return fmt.Sprintf("%s is not ready", ref)
		}
	}
	return ""
}

// userOf returns a resource that names another one.
func (r *round) userOf(ref Ref) (user Ref, ok bool) {
	if r.users == nil {
		r.users = map[Ref]Ref{}
		for _, m := range r.resources {
			for _, needed := range m.needs() {
				if own := (Ref{m.Kind, m.Name}); own != needed {
					r.users[needed] = own
				}
			}
		}
	}
	user, ok = r.users[ref]
	return user, ok
}
