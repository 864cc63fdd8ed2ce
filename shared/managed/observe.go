package managed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

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
func (p *pass) observe(ctx context.Context) error {
	if err := p.openAll(ctx); err != nil {
		return err
	}
	began := time.Now()
	groups, order, named := map[listing][]*resource{}, []listing{}, p.named()
	for _, m := range p.resources {
		if !m.isSelected && !named[Ref{m.Kind, m.Name}] {
			continue
		}
		if m.driver == nil {
			m.unknown = apperr.New(apperr.Unsupported, "the kind %s is not supported here", m.Kind)
			continue
		}
		key := listing{m.driver, m.Schedule.Region}
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], m)
	}
	objects := p.listAll(ctx, order, groups)
	p.readStored(ctx, order, groups, objects)
	all := make([]domain.Managed, len(p.resources))
	for n, m := range p.resources {
		all[n] = m.Managed
		if m.isSelected || named[Ref{m.Kind, m.Name}] {
			if err := p.confirm(ctx, m, objects); err != nil {
				return err
			}
		}
	}
	p.listed = time.Since(began)
	if err := p.findUnexpected(ctx); errors.Is(err, domain.ErrFenced) {
		return err
	} else if err != nil { // what is declared does not wait for it, and what the last scan has found stays
		p.problem = err
		for _, m := range p.resources {
			m.unexpected = m.lastUnexpected()
		}
	}
	p.inventory = NewInventory(all, objects)
	p.matchAll(ctx, objects)
	return nil
}

// named are the resources that the selected ones name.
func (p *pass) named() map[Ref]bool {
	named := map[Ref]bool{}
	for _, m := range p.resources {
		if !m.isSelected {
			continue
		}
		for _, ref := range m.needs() {
			named[ref] = true
		}
	}
	return named
}

const (
	parallelLists = 4 // of a project
	parallelFinds = 4 // of objects that a list does not show
	// listTime is that of one list, and of all other reads of a kind together: a service that hangs keeps the others of
	// the project for that long.
	listTime = 30 * time.Second
)

// listAll lists the objects of each driver and region, some beside each other. All sessions of a project show the same;
// the next one is used only when a list is forbidden, because trusts may have different roles.
func (p *pass) listAll(
	ctx context.Context, order []listing, groups map[listing][]*resource,
) map[uuid.UUID]Object {
	lists := make([]list, len(order))
	var all errgroup.Group
	all.SetLimit(parallelLists)
	for n, key := range order {
		group := groups[key]
		all.Go(func() error {
			limited, cancel := context.WithTimeout(ctx, listTime)
			defer cancel()
			for _, m := range withSessions(group) {
				lists[n] = readObjects(limited, key.driver, m.session, group, p.isScan())
				lists[n].err = p.explain(m, lists[n].err)
				if apperr.CodeOf(lists[n].err) != apperr.Forbidden {
					break
				}
			}
			return nil
		})
	}
	_ = all.Wait() // the errors are in lists
	objects := map[uuid.UUID]Object{}
	for n, key := range order {
		if err := lists[n].err; err != nil {
			p.problem = err
			for _, m := range groups[key] {
				if m.unknown == nil {
					m.unknown = err
				}
			}
			continue
		}
		if maps.Copy(objects, lists[n].found); p.isScan() {
			p.marked[key] = lists[n].found
		}
		for _, id := range lists[n].deleted {
			p.deleted[id] = true
		}
	}
	return objects
}

// withSessions returns one resource for each connection of a group that could be opened.
func withSessions(group []*resource) (some []*resource) {
	known := map[uuid.UUID]bool{}
	for _, m := range group {
		if m.unknown == nil && !known[m.ConnectionID] {
			known[m.ConnectionID] = true
			some = append(some, m)
		}
	}
	return some
}

// list is what a listing has found.
type list struct {
	found   map[uuid.UUID]Object
	deleted []uuid.UUID // the members whose objects are not found by their ids
	err     error
}

// mostFinds is up to how many objects are read one by one, instead of in a list of all.
const mostFinds = 10

// readObjects reads the objects of the members of resources. Few servers that are made are read by their ids: something
// has reported that they have changed. All else is listed, and in a scan all is.
func readObjects(ctx context.Context, driver Driver, s Session, group []*resource, isScan bool) (l list) {
	var members []domain.Member
	readsEach := !isScan
	for _, m := range group {
		members = append(members, m.Members...)
		readsEach = readsEach && m.isReported() && m.Kind != domain.KindConfigmap
	}
	if !readsEach || len(members) > mostFinds || slices.ContainsFunc(members, func(m domain.Member) bool {
		return m.Status != domain.MemberReady || m.ObjectID == ""
	}) {
		l.found, l.err = driver.List(ctx, s, members)
		return l
	}
	l.found = make(map[uuid.UUID]Object, len(members))
	for _, m := range members {
		o, err := driver.Find(ctx, s, m.ObjectID)
		switch {
		case apperr.CodeOf(err) == apperr.NotFound:
			l.deleted = append(l.deleted, m.ID)
		case err != nil:
			return list{err: err}
		case o.Raw == nil: // it exists, and only a list shows how it is
			l.found, l.err = driver.List(ctx, s, members)
			return l
		default:
			l.found[m.ID] = o
		}
	}
	return l
}

// confirm reads the stored objects of a resource by their ids: those that no list shows, and those for which a list
// shows another one with the same mark. What is not known of an object does not count as its deletion, nor does one
// read that does not find it, unless OpenStack has accepted its deletion.
func (p *pass) confirm(ctx context.Context, m *resource, objects map[uuid.UUID]Object) error {
	for n := range m.Members {
		member := &m.Members[n]
		if member.ObjectID == "" && member.Status != domain.MemberDeleting {
			continue
		}
		before := *member
		switch isAbsent := p.isAbsent(m, *member, objects); {
		case isAbsent && member.ObjectID == "" && m.Kind.IsServer() && !m.session.cellsUp(ctx):
			p.missed[member.ID] = true
		case isAbsent:
			p.miss(member, objects)
		case objects[member.ID].Raw != nil:
			member.MissedAt = time.Time{}
		}
		if *member != before {
			if err := p.saveMember(ctx, *member); err != nil && !errors.Is(err, domain.ErrChanged) {
				return err
			}
		}
	}
	return nil
}

// miss records a read that does not find the object of a member. The object is deleted if the read is not the first
// one, or OpenStack has accepted its deletion. A list may show another object with its mark: a copy belongs to others,
// and one that was made twice takes its place.
func (p *pass) miss(member *domain.Member, objects map[uuid.UUID]Object) {
	other, isListed := objects[member.ID]
	delete(objects, member.ID)
	switch isAccepted := member.Status == domain.MemberDeleting && member.Writes > 0; {
	case !isAccepted && !member.Missed(p.now):
		p.missed[member.ID] = true
		objects[member.ID] = Object{ID: member.ObjectID, State: ObjectWorking, Reason: "OpenStack does not find it"}
	case isListed && isTwin(other, *member):
		member.ObjectID, member.MissedAt = other.ID, time.Time{}
		if member.Written == deletedByOthers { // what a late call has made is the member's
			member.Written = ""
		}
		objects[member.ID] = other
	}
}

// stored is what was read of an object by its stored id.
type stored struct {
	object Object
	err    error
}

// readStored reads the stored objects that no list shows by their ids, those of each driver and region beside each
// other.
func (p *pass) readStored(
	ctx context.Context, order []listing, groups map[listing][]*resource, objects map[uuid.UUID]Object,
) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, key := range order {
		all.Go(func() {
			limited, cancel := context.WithTimeout(ctx, listTime)
			defer cancel()
			var finds errgroup.Group
			finds.SetLimit(parallelFinds)
			for _, m := range groups[key] {
				if m.unknown != nil {
					continue
				}
				for _, member := range m.Members {
					if member.ObjectID == "" || objects[member.ID].ID == member.ObjectID || p.deleted[member.ID] {
						continue
					}
					finds.Go(func() error {
						o, err := key.driver.Find(limited, m.session, member.ObjectID)
						mu.Lock()
						defer mu.Unlock()
						p.stored[member.ID] = stored{o, err}
						return nil
					})
				}
			}
			_ = finds.Wait() // the errors are in stored
		})
	}
	all.Wait()
}

// isAbsent reports whether nothing shows the object of a member. Of a new one only the mark may be known.
func (p *pass) isAbsent(m *resource, member domain.Member, objects map[uuid.UUID]Object) bool {
	if member.ObjectID != "" {
		return p.findStored(member, objects)
	}
	return member.IsRequested && objects[member.ID].ID == "" && m.unknown == nil
}

// unlisted is the reason of an object that is not read: a list may be short, or its service does not answer.
const unlisted = "no list shows it"

// findStored takes the stored object of a member from what was read by its id, unless a list has shown it, and reports
// whether OpenStack does not find it.
func (p *pass) findStored(member domain.Member, objects map[uuid.UUID]Object) (isAbsent bool) {
	if o := objects[member.ID]; o.ID == member.ObjectID || p.deleted[member.ID] {
		return p.deleted[member.ID]
	}
	one := p.stored[member.ID]
	switch {
	case apperr.CodeOf(one.err) == apperr.NotFound:
		return true
	case one.err != nil || one.object.Raw == nil:
		one.object = Object{ID: member.ObjectID, State: ObjectWorking, Reason: unlisted}
	}
	objects[member.ID] = one.object
	return false
}

// matchAll compares the selected resources concurrently: while a service hangs, only those wait
// that have names to look up there.
func (p *pass) matchAll(ctx context.Context, objects map[uuid.UUID]Object) {
	resolving, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	var all errgroup.Group
	for _, m := range p.resources {
		if m.isSelected && m.unknown == nil {
			all.Go(func() error { return p.match(resolving, m, objects) })
		}
	}
	if err := all.Wait(); err != nil {
		p.problem = err
	}
}

// match gives each member its object and their differences. While it is not known what changed names mean, it is not
// known either what differs, and nothing is done for the resource.
func (p *pass) match(ctx context.Context, m *resource, objects map[uuid.UUID]Object) error {
	for _, member := range m.Members {
		s := observed{member: member, isMissed: p.missed[member.ID]}
		s.object, s.isFound = objects[member.ID]
		s.isUnlisted = s.isFound && s.object.Raw == nil && s.object.Reason == unlisted
		isReady := s.isFound && s.object.State == ObjectReady
		if isReady {
			s.isUnrecorded, s.member.MayHaveData = !member.MayHaveData, true
		}
		isCompared := isReady || s.isFound && s.object.State == ObjectError
		if isCompared && member.Status != domain.MemberDeleting && !m.isDeleting() {
			in := p.desired(m, member)
			in.Member.UserData = in.knownUserData()
			s.member.UserData = in.Member.UserData
			var err error
			if in.names, err = m.session.resolve(ctx, in, s.object); err != nil {
				m.unknown, m.members = p.explain(m, err), nil
				return err
			}
			if s.differences = m.driver.Differences(in, s.object); !isReady {
				s.differences = declaredSince(m.driver.Differences(in.asMade(), s.object), s.differences)
			}
			isOld := func(one Difference) bool { return one.Way == OnlyNew }
			s.isOld = slices.ContainsFunc(s.differences, isOld)
			s.differences = slices.DeleteFunc(s.differences, isOld)
			s.differences = slices.DeleteFunc(s.differences, func(one Difference) bool {
				if one.Stays {
					s.added = append(s.added, one)
				}
				return one.Stays
			})
			if isReady && m.target().isDeployment && m.target().surges {
				replaceDisrupting(s.differences)
			}
		}
		m.members = append(m.members, s)
	}
	return nil
}

// replaceDisrupting has objects replaced that could be changed only while they do not work: none may be missing.
func replaceDisrupting(differences []Difference) {
	for n := range differences {
		if differences[n].Way == InPlace && differences[n].Disrupts && !differences[n].Continues {
			differences[n].Way = Replace
		}
	}
}

// waitsFor says what a resource has to wait for: while it is deleted, for those that name it; else for those that it
// names.
func (p *pass) waitsFor(m *resource) string {
	if m.isDeleting() {
		if user, ok := p.userOf(Ref{m.Kind, m.Name}); ok {
			return fmt.Sprintf("it is used by %s", user)
		}
		return ""
	}
	for _, ref := range m.needs() {
		needed, ok := p.inventory.Resource(ref.Kind, ref.Name)
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
func (p *pass) userOf(ref Ref) (user Ref, ok bool) {
	if p.users == nil {
		p.users = map[Ref]Ref{}
		for _, m := range p.resources {
			for _, needed := range m.needs() {
				if own := (Ref{m.Kind, m.Name}); own != needed {
					p.users[needed] = own
				}
			}
		}
	}
	user, ok = p.users[ref]
	return user, ok
}
