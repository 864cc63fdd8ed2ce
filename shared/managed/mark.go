package managed

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// The marks of objects: a metadata item where a service has metadata, else two tags. One of the tags is the same for
// all managed objects, so that they can be listed.
const (
	markKey   = "cloudfn_managed"
	markTag   = domain.ManagedTag
	tagPrefix = "cloudfn:member:"
)

// memberTags are the tags of a member's object.
func memberTags(member uuid.UUID) []string { return []string{markTag, memberTag(member)} }

func memberTag(member uuid.UUID) string { return tagPrefix + member.String() }

// taggedMember finds the member among the tags of an object.
func taggedMember(tags []string) (uuid.UUID, bool) {
	for _, tag := range tags {
		if id, ok := strings.CutPrefix(tag, tagPrefix); ok {
			member, err := uuid.Parse(id)
			return member, err == nil
		}
	}
	return uuid.UUID{}, false
}

// copyAfter is the age at which an object with the mark of an older one is a copy that others have made, and not what a
// creation whose answer was lost has left: a backup of a volume, for example, is restored with the volume's metadata.
// No call works so late.
const copyAfter = 2 * time.Minute

// byMark gives each member its object: the one that is stored, or else the oldest one with its mark. Those that other
// create calls have made are Extra; copies of it belong to others.
func byMark(found map[uuid.UUID][]Object, members []domain.Member) map[uuid.UUID]Object {
	known := make(map[uuid.UUID]domain.Member, len(members))
	for _, m := range members {
		known[m.ID] = m
	}
	out := make(map[uuid.UUID]Object, len(found))
	for member, objects := range found {
		slices.SortFunc(objects, func(a, b Object) int {
			return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
		})
		stored := known[member].ObjectID
		own := objects[max(0, slices.IndexFunc(objects, func(o Object) bool { return o.ID == stored }))]
		own.Extra = twins(own, objects, known[member].CreateCalls)
		out[member] = own
	}
	return out
}

// twins are the objects with the mark of own that other create calls have made. The tags of servers name the calls. Of
// other objects it is known only how many the calls may have made: with a copy among them, none counts as a twin.
func twins(own Object, objects []Object, calls int) (all []Object) {
	unnamed := 0
	for _, o := range objects {
		isNamed := own.Call != "" && o.Call != ""
		switch {
		case o.ID == own.ID, o.CreatedAt.Sub(own.CreatedAt).Abs() >= copyAfter, isNamed && o.Call == own.Call:
			continue
		case !isNamed:
			unnamed++
		}
		all = append(all, o)
	}
	if unnamed >= max(calls, 1) {
		all = slices.DeleteFunc(all, func(o Object) bool { return own.Call == "" || o.Call == "" })
	}
	return all
}

// isTwin reports whether an object with a member's mark is what another create call has made, and no copy of the
// member's object that others have made.
func isTwin(o Object, m domain.Member) bool {
	return m.CreateCalls > 1 && o.CreatedAt.Sub(m.CreatedAt).Abs() < copyAfter
}

// raw is the driver's own part of an object.
func raw[T any](o Object) T {
	own, _ := o.Raw.(T)
	return own
}

// read decodes a spec. It was validated when it was declared.
func read[T any](spec json.RawMessage) T {
	var out T
	_ = json.Unmarshal(spec, &out)
	return out
}

// entries compares a map that is declared with what is, entry by entry. An entry that was declared before and is not
// now is to be removed; others of the object are not ours.
func entries(field string, declared, before, actual map[string]string) []Difference {
	var out []Difference
	for key, value := range declared {
		if now, ok := actual[key]; !ok {
			out = append(out, Difference{Field: field + "." + key, Declared: value, Way: InPlace})
		} else if now != value {
			out = append(out, Difference{Field: field + "." + key, Declared: value, Actual: now, Way: InPlace})
		}
	}
	for key := range before {
		now, isThere := actual[key]
		if _, isDeclared := declared[key]; isThere && !isDeclared {
			out = append(out, Difference{Field: field + "." + key, Actual: now, Way: InPlace})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.Field, b.Field) })
	return out
}

// missing are the marks that an object has lost.
func missing(field string, marks, actual map[string]string) []Difference {
	out := entries(field, marks, nil, actual)
	for n := range out {
		out[n].IsMark = true
	}
	return out
}

// changes sorts the differences of a map into what is to be set and what is to be removed.
func changes(field string, differences []Difference) (set map[string]string, remove []string) {
	set = map[string]string{}
	for _, d := range differences {
		key, ok := strings.CutPrefix(d.Field, field+".")
		if !ok {
			continue
		}
		if value, isSet := d.Declared.(string); isSet {
			set[key] = value
		} else {
			remove = append(remove, key)
		}
	}
	return set, remove
}

// compare makes a Difference of two values, if they differ.
func compare[T comparable](field string, declared, actual T, way Way) []Difference {
	if declared == actual {
		return nil
	}
	return []Difference{{Field: field, Declared: declared, Actual: actual, Way: way}}
}

// differs reports whether a field is among the differences.
func differs(differences []Difference, field string) bool {
	return slices.ContainsFunc(differences, func(d Difference) bool { return d.Field == field })
}

// find returns the difference of a field.
func find(differences []Difference, field string) (Difference, bool) {
	return firstOf(differences, func(d Difference) bool { return d.Field == field })
}

// firstOf returns the first element that is so.
func firstOf[T any](all []T, isSo func(T) bool) (found T, ok bool) {
	if n := slices.IndexFunc(all, isSo); n >= 0 {
		return all[n], true
	}
	return found, false
}

// unexpectedField is the field of the drift that an unexpected object is.
const unexpectedField = "unexpected_object"

// unexpectedKept is how long an object that no scan finds is remembered: a cell of Nova may be down for some time.
const unexpectedKept = 24 * time.Hour

// findUnexpected finds the objects that carry a mark and belong to no member, such as a server that Nova did not find
// for a while, and that was made again. Each is an event when two scans have found it, and drift of the resource that
// has its name. It is never deleted. Between scans what the last one has found stays.
func (p *pass) findUnexpected(ctx context.Context) error {
	listed, ids, found := p.listedObjects()
	if len(listed) > 0 {
		err := p.Store.ForgetUnexpected(ctx, p.claim, p.project.ProjectID, listed, ids, unexpectedKept)
		if err != nil {
			return err
		}
	}
	var reported []string
	if len(found) > 0 {
		all, err := p.Store.SaveUnexpected(ctx, p.claim, p.project.ProjectID, found, domain.MissedFor)
		if err != nil {
			return err
		}
		reported = all
	}
	slices.Sort(reported)
	for _, m := range p.resources {
		if _, isListed := p.marked[listing{m.driver, m.Schedule.Region}]; !isListed {
			m.unexpected = m.lastUnexpected()
			continue
		}
		for _, id := range reported {
			n := slices.IndexFunc(found, func(o domain.UnexpectedObject) bool { return o.ObjectID == id })
			if n >= 0 && m.isNamed(found[n]) {
				m.unexpected = append(m.unexpected, domain.Drift{Field: unexpectedField, Actual: id})
			}
		}
	}
	return nil
}

// lastUnexpected returns what the last scan has found.
func (m *resource) lastUnexpected() []domain.Drift {
	return slices.DeleteFunc(slices.Clone(m.Drift), func(d domain.Drift) bool { return d.Field != unexpectedField })
}

// listedObjects returns the providers and regions that a scan has listed, the ids of all objects that carry a mark, and
// those of them that belong to no member.
func (p *pass) listedObjects() (listed []domain.UnexpectedObject, ids []string, found []domain.UnexpectedObject) {
	known := map[string]bool{} // members and their objects
	for _, m := range p.resources {
		for _, member := range m.Members {
			known[member.ID.String()], known[member.ObjectID] = true, true
		}
	}
	for key, objects := range p.marked {
		for mark, o := range objects { // a server may carry several ids
			known[o.ID] = known[o.ID] || known[mark.String()]
		}
		provider, _ := domain.ProviderOf(key.driver.Kinds()[0])
		listed = append(listed, domain.UnexpectedObject{Provider: provider.Name, Region: key.region})
		for _, o := range objects {
			ids = append(ids, o.ID)
			if !known[o.ID] && o.State != ObjectDeleting {
				known[o.ID] = true
				found = append(found, domain.UnexpectedObject{
					ObjectID: o.ID, Name: o.Name, Provider: provider.Name, Region: key.region,
				})
			}
		}
	}
	return listed, ids, found
}

// isNamed reports whether an object has the name that an object of the resource has.
func (m *resource) isNamed(o domain.UnexpectedObject) bool {
	provider, _ := domain.ProviderOf(m.Kind)
	if provider.Name != o.Provider || m.Schedule.Region != o.Region {
		return false
	}
	if !m.Kind.IsDeployment() {
		return o.Name == m.Name
	}
	ordinal, ok := strings.CutPrefix(o.Name, m.Name+"-")
	n, err := strconv.Atoi(ordinal)
	return ok && err == nil && m.NameOf(domain.Member{Ordinal: n}) == o.Name
}
