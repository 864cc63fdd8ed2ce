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

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	engine "github.com/cloudfn/cloudfn/shared/managed"
)

// The actions of a plan.
const (
	planCreate  = "create"
	planUpdate  = "update"
	planReplace = "replace"
	planNone    = "none"
)

// plan is what a declaration would do.
type plan struct {
	action string
	fields []PlanField
	note   string // what of it waits for the user
	absent []PlanMissing
}

// planOf compares a declaration with what is stored.
func planOf(before domain.Managed, made domain.NewManaged) plan {
	p := plan{action: planUpdate}
	if before.Revision == 0 {
		p.action = planCreate
	}
	for _, d := range compare(shownFields(before), shownFields(made.Managed)) {
		p.fields = append(p.fields, PlanField{Field: d.Path, From: d.From, To: d.To})
	}
	if secret := secretField(made.Kind); secret != "" && string(before.Digest) != string(made.Digest) {
		p.fields = append(p.fields, PlanField{Field: "spec." + secret}) // its values stay secret
	}
	if len(p.fields) == 0 {
		p.action = planNone
	}
	return p
}

// decide says how the drivers make the changes of an update.
func (p *plan) decide(kind domain.Kind, changes []engine.Difference) {
	has := func(way engine.Way, fields ...string) bool {
		return slices.ContainsFunc(changes, func(d engine.Difference) bool {
			return d.Way == way && (len(fields) == 0 || slices.Contains(fields, d.Field))
		})
	}
	var notes []string
	switch {
	case has(engine.Refused):
		notes = append(notes, noteFixed)
	case has(engine.Replace):
		p.action = planReplace
		if kind.IsServer() {
			notes = append(notes, noteReplaced)
		}
	}
	if kind.IsServer() && has(engine.InPlace, "image") {
		notes = append(notes, noteRebuilt)
	}
	p.note = strings.Join(notes, "; ")
}

// The notes of a plan.
const (
	noteFixed = "some of these fields cannot be changed in place: the servers keep what they have until update is " +
		"replace"
	noteReplaced = "other servers take the place of these: what is on their disks is lost"
	noteRebuilt  = "the servers are rebuilt: what is on their disks is lost"
)

// noteFiles says what the change of a configmap does to the servers that name it.
func (s service) noteFiles(ctx context.Context, m domain.Managed, p *plan) error {
	isChanged := slices.ContainsFunc(p.fields, func(f PlanField) bool { return f.Field == "spec.data" })
	if m.Kind != domain.KindConfigmap || p.action != planUpdate || !isChanged {
		return nil
	}
	var kept, rolled []string
	for _, kind := range domain.ServerKinds() {
		for q := (domain.ManagedQuery{Kind: kind, Limit: pageOfUsers}); ; {
			page, err := s.store.List(ctx, m.ProjectID, q)
			if err != nil {
				return err
			}
			for _, user := range page {
				switch name := fmt.Sprintf("%s %s", kind, user.Name); {
				case !slices.Contains(configmapsOf(user.Spec), m.Name):
				case fields(user.Spec)["update"] == domain.UpdateReplace:
					rolled = append(rolled, name)
				default:
					kept = append(kept, name)
				}
			}
			if len(page) < pageOfUsers {
				break
			}
			q.Marker = page[len(page)-1].ID
		}
	}
	var notes []string
	if len(kept) > 0 {
		notes = append(notes, fmt.Sprintf(noteKept, some(kept)))
	}
	if len(rolled) > 0 {
		notes = append(notes, fmt.Sprintf(noteRolled, some(rolled)))
	}
	p.note = strings.Join(notes, "; ")
	return nil
}

const (
	pageOfUsers = 500
	shownUsers  = 5

	noteKept   = "only new servers of %s get the change, until update is replace"
	noteRolled = "other servers take the place of those of %s: what is on their disks is lost"
)

// some shows the first names.
func some(names []string) string {
	text := strings.Join(names[:min(len(names), shownUsers)], ", ")
	if more := len(names) - shownUsers; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// shownFields are the values of a declaration, by field.
func shownFields(m domain.Managed) map[string]any {
	all := map[string]any{}
	if m.Kind == "" {
		return all
	}
	put := func(name string, value any, isZero bool) {
		if !isZero {
			all[name] = value
		}
	}
	put("flavor", m.Flavor, m.Flavor == "")
	put("labels", m.Labels, len(m.Labels) == 0)
	put("schedule", m.Schedule, reflect.ValueOf(m.Schedule).IsZero())
	put("repair", m.Repair, false)
	put("max_revisions", m.MaxRevisions, false)
	for name, value := range fields(m.Spec) {
		all["spec."+name] = value
	}
	return all
}

// Diff compares a revision with another one, or with the real members when to is 0. from 0 is the declared revision. It
// returns the revision that it compares.
func (s service) Diff(
	ctx context.Context, who domain.Identity, kind domain.Kind, name string, from, to int,
) (compared int, found []ManagedDifference, err error) {
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
	return engine.UserDataDigest(r, engine.NewInventory(configmaps, nil)), nil
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
func compare(from, to map[string]any) (found []ManagedDifference) {
	all := maps.Clone(from)
	maps.Copy(all, to)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if !reflect.DeepEqual(from[path], to[path]) {
			found = append(found, ManagedDifference{Path: path, From: from[path], To: to[path]})
		}
	}
	return found
}

func betweenRevisions(kind domain.Kind, from, to domain.Revision) []ManagedDifference {
	return append(compare(pathsOf(from), pathsOf(to)), secretChange(kind, from, to)...)
}

// secretChange is the difference of the secret fields of revisions.
func secretChange(kind domain.Kind, from, to domain.Revision) []ManagedDifference {
	if bytes.Equal(from.Digest, to.Digest) {
		return nil
	}
	return []ManagedDifference{{Path: "spec." + secretField(kind)}}
}

// againstMembers compares a revision with the members: with the revision that each has, with what others have changed
// of it since, and the digest of what the user_data of a new server are made from with that of each.
func againstMembers(
	m domain.Managed, from domain.Revision, all []domain.Revision, now string,
) (found []ManagedDifference) {
	count := 0
	for _, member := range m.Members {
		drift := slices.DeleteFunc(slices.Clone(m.Drift), func(d domain.Drift) bool { return d.Member != member.ID })
		isDeleted := slices.ContainsFunc(drift, func(d domain.Drift) bool { return d.Field == "exists" })
		switch {
		case member.Status == domain.MemberDeleting:
		case member.ObjectID == "" || isDeleted:
			found = append(found, ManagedDifference{Member: member.ID, Path: "exists", From: true, To: false})
		default:
			count++
			own := memberDifferences(m, member, from, all, drift)
			found = append(append(found, own...), fileChange(member, own, now)...)
		}
	}
	if !m.Kind.IsDeployment() {
		if len(m.Members) == 0 {
			found = append(found, ManagedDifference{Path: "exists", From: true, To: false})
		}
		return found
	}
	var declared domain.DeploymentSpec
	if _ = json.Unmarshal(from.Spec, &declared); declared.Count != count { // it was checked
		found = slices.Insert(found, 0, ManagedDifference{Path: "spec.count", From: declared.Count, To: count})
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
func fileChange(m domain.Member, found []ManagedDifference, now string) []ManagedDifference {
	isFound := slices.ContainsFunc(found, func(d ManagedDifference) bool {
		return d.Path == "spec.configmaps" || d.Path == "spec."+userData || d.Path == "spec.restart" ||
			strings.HasPrefix(d.Path, "spec.containers")
	})
	if isFound || now == "" || m.UserData == "" || m.UserData == now {
		return nil
	}
	return []ManagedDifference{{m.ID, "spec.configmaps", "sha256:" + now, "sha256:" + m.UserData}}
}

func memberDifferences(
	m domain.Managed, member domain.Member, from domain.Revision, all []domain.Revision, drift []domain.Drift,
) (found []ManagedDifference) {
	declared := specPaths(from)
	if n := slices.IndexFunc(all, func(r domain.Revision) bool { return r.Number == member.Revision }); n >= 0 {
		found = append(compare(declared, specPaths(all[n])), secretChange(m.Kind, from, all[n])...)
	}
	found = slices.DeleteFunc(found, func(d ManagedDifference) bool { return slices.Contains(ofNoMember, d.Path) })
	for _, one := range drift { // it is against the declared revision
		d := ManagedDifference{Path: driftPath(one.Field), From: one.Declared, To: one.Actual}
		if from.Number != m.Revision {
			d.From = declaredAt(declared, d.Path)
		}
		found = slices.DeleteFunc(found, func(other ManagedDifference) bool { return other.Path == d.Path })
		if d.Path == "spec."+secretField(m.Kind) || !isSameJSON(d.From, d.To) {
			found = append(found, d)
		}
	}
	for n := range found {
		found[n].Member = member.ID
	}
	return found
}
