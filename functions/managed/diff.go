package managed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	engine "github.com/cloudfn/cloudfn/shared/managed"
)

// difference is one field in which two revisions differ, or a revision and a member. A secret's values are not in it.
type difference struct {
	member   uuid.UUID // the zero one for fields of the resource itself
	path     string
	from, to any
}

// Diff compares a revision with another one, or with the real members when to is 0. from 0 is the declared revision. It
// returns the revision that it compares.
func (s service) Diff(
	ctx context.Context, who domain.Identity, kind domain.Kind, name string, from, to int,
) (compared int, found []difference, err error) {
	m, all, err := s.Revisions(ctx, who, kind, name)
	if err != nil {
		return 0, nil, err
	}
	if from == 0 {
		from = m.Revision
	}
	before, err := pick(m, all, from)
	if err != nil {
		return 0, nil, err
	}
	if to == 0 {
		now, err := s.userDataDigest(ctx, m, before)
		return from, againstMembers(m, before, all, now), err
	}
	after, err := pick(m, all, to)
	if err != nil {
		return 0, nil, err
	}
	return from, betweenRevisions(kind, before, after), nil
}

// userDataDigest is the digest of what a new server of a revision would get as user_data; "" for other kinds.
func (s service) userDataDigest(ctx context.Context, m domain.Managed, r domain.Revision) (string, error) {
	if secretField(m.Kind) != userData {
		return "", nil
	}
	var configmaps []domain.Managed
	for _, name := range configmapsOf(r.Spec) {
		one, err := s.store.Get(ctx, m.ProjectID, domain.KindConfigmap, name)
		switch {
		case apperr.CodeOf(err) == apperr.NotFound:
			return "", nil
		case err != nil:
			return "", err
		}
		configmaps = append(configmaps, one)
	}
	return engine.UserDataDigest(r, engine.NewAround(configmaps, nil)), nil
}

// configmapsOf are the configmaps that the spec of a server names.
func configmapsOf(text json.RawMessage) []string {
	var spec domain.MachineSpec
	_ = json.Unmarshal(text, &spec) // it was checked
	return spec.Configmaps
}

// pathsOf are the values of a revision by their paths.
func pathsOf(r domain.Revision) map[string]any {
	out := specPaths(r)
	if r.Flavor != "" {
		out["flavor"] = r.Flavor
	}
	for key, value := range r.Labels {
		out["labels."+key] = value
	}
	for key, value := range r.Schedule.Labels {
		out["schedule.labels."+key] = value
	}
	for field, value := range map[string]string{
		"region": r.Schedule.Region, "zone": r.Schedule.Zone, "affinity": r.Schedule.Affinity,
	} {
		if value != "" {
			out["schedule."+field] = value
		}
	}
	return out
}

// specPaths are the values of the spec of a revision by their paths.
func specPaths(r domain.Revision) map[string]any {
	out := map[string]any{}
	flatten(out, "spec", fields(r.Spec))
	return out
}

// flatten adds the values below a path. A list of texts or numbers is one value.
func flatten(out map[string]any, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			flatten(out, path+"."+key, inner)
		}
		return
	case []any:
		if slices.ContainsFunc(value, func(one any) bool { _, isObject := one.(map[string]any); return isObject }) {
			for n, inner := range value {
				flatten(out, fmt.Sprintf("%s[%d]", path, n), inner)
			}
			return
		}
	}
	out[path] = value
}

// compare lists the paths whose values differ, in their order.
func compare(from, to map[string]any) (found []difference) {
	all := maps.Clone(from)
	maps.Copy(all, to)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if !reflect.DeepEqual(from[path], to[path]) {
			found = append(found, difference{path: path, from: from[path], to: to[path]})
		}
	}
	return found
}

func betweenRevisions(kind domain.Kind, from, to domain.Revision) []difference {
	return append(compare(pathsOf(from), pathsOf(to)), secretChange(kind, from, to)...)
}

// secretChange is the difference of the secret fields of revisions.
func secretChange(kind domain.Kind, from, to domain.Revision) []difference {
	if bytes.Equal(from.Digest, to.Digest) {
		return nil
	}
	return []difference{{path: "spec." + secretField(kind)}}
}

// againstMembers compares a revision with the members: with the revision that each has, with what others have changed
// of it since, and the digest of what the user_data of a new server are made from with that of each.
func againstMembers(
	m domain.Managed, from domain.Revision, all []domain.Revision, now string,
) (found []difference) {
	count := 0
	for _, member := range m.Members {
		drift := slices.DeleteFunc(slices.Clone(m.Drift), func(d domain.Drift) bool { return d.Member != member.ID })
		isDeleted := slices.ContainsFunc(drift, func(d domain.Drift) bool { return d.Field == "exists" })
		switch {
		case member.Status == domain.MemberDeleting:
		case member.ObjectID == "" || isDeleted:
			found = append(found, difference{member: member.ID, path: "exists", from: true, to: false})
		default:
			count++
			own := memberDifferences(m, member, from, all, drift)
			found = append(append(found, own...), fileChange(member, own, now)...)
		}
	}
	if m.Kind != domain.KindDeployment {
		if len(m.Members) == 0 {
			found = append(found, difference{path: "exists", from: true, to: false})
		}
		return found
	}
	var declared domain.DeploymentSpec
	if _ = json.Unmarshal(from.Spec, &declared); declared.Count != count { // it was checked
		found = slices.Insert(found, 0, difference{path: "spec.count", from: declared.Count, to: count})
	}
	return found
}

// ofNoMember are the fields of a spec that no server has: they say how many there are, and how they are updated.
var ofNoMember = []string{"spec.count", "spec.max_unavailable", "spec.update"}

// driftPath is the path of a field of a drift.
func driftPath(field string) string {
	if field == "name" || field == "schedule" {
		return field
	}
	return "spec." + field
}

// declaredAt is the declared value at the path of a drift. That of an item of a list, such as a tag, ends with the
// item.
func declaredAt(declared map[string]any, path string) any {
	if value, ok := declared[path]; ok {
		return value
	}
	for n := strings.LastIndexByte(path, '.'); n > 0; n = strings.LastIndexByte(path[:n], '.') {
		if list, ok := declared[path[:n]].([]any); ok && slices.Contains(list, any(path[n+1:])) {
			return path[n+1:]
		}
	}
	return nil
}

// isSameJSON compares values that were decoded in two ways: a number may be a json.Number or a float64.
func isSameJSON(a, b any) bool {
	text, err := json.Marshal(a)
	other, otherErr := json.Marshal(b)
	return err == nil && otherErr == nil && bytes.Equal(text, other)
}

// fileChange is the difference between the files of configmaps that a server has and those that a new one would get.
// Changes that are found already are not repeated.
func fileChange(m domain.Member, found []difference, now string) []difference {
	isFound := slices.ContainsFunc(found, func(d difference) bool {
		return d.path == "spec.configmaps" || d.path == "spec."+userData
	})
	if isFound || now == "" || m.UserData == "" || m.UserData == now {
		return nil
	}
	return []difference{{m.ID, "spec.configmaps", "sha256:" + now, "sha256:" + m.UserData}}
}

func memberDifferences(
	m domain.Managed, member domain.Member, from domain.Revision, all []domain.Revision, drift []domain.Drift,
) (found []difference) {
	declared := specPaths(from)
	if n := slices.IndexFunc(all, func(r domain.Revision) bool { return r.Number == member.Revision }); n >= 0 {
		found = append(compare(declared, specPaths(all[n])), secretChange(m.Kind, from, all[n])...)
	}
	found = slices.DeleteFunc(found, func(d difference) bool { return slices.Contains(ofNoMember, d.path) })
	for _, one := range drift { // it is against the declared revision
		d := difference{path: driftPath(one.Field), from: one.Declared, to: one.Actual}
		if from.Number != m.Revision {
			d.from = declaredAt(declared, d.path)
		}
		found = slices.DeleteFunc(found, func(other difference) bool { return other.path == d.path })
		if d.path == "spec."+secretField(m.Kind) || !isSameJSON(d.from, d.to) {
			found = append(found, d)
		}
	}
	for n := range found {
		found[n].member = member.ID
	}
	return found
}
