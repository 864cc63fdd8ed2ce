package managed

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/domain"
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
	same   []string // fields whose other names mean the same objects
}

// replaced are the fields of a spec whose change takes another object, by kind.
var replaced = map[domain.Kind][]string{
	domain.KindMachine:    fixedFields,
	domain.KindDeployment: fixedFields,
	domain.KindImage:      {"container_format", "content", "disk_format", "source_url"},
	domain.KindBalancer:   {"address", "network"},
	domain.KindSecret:     {"content_type", "payload"},
}

// fixedFields are those that Nova cannot change of a server.
var fixedFields = []string{"configmaps", "key_name", "networks", "security_groups", "user_data"}

// planOf compares a declaration with what is stored.
func planOf(before domain.Managed, made domain.NewManaged) plan {
	p := plan{action: planUpdate}
	if before.Revision == 0 {
		p.action = planCreate
	}
	from, to := shownFields(before), shownFields(made.Managed)
	names := slices.Sorted(maps.Keys(from))
	for name := range to {
		if _, isOld := from[name]; !isOld {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if !reflect.DeepEqual(from[name], to[name]) {
			p.fields = append(p.fields, PlanField{Field: name, From: from[name], To: to[name]})
		}
	}
	if secret := secretField(made.Kind); secret != "" && string(before.Digest) != string(made.Digest) {
		p.fields = append(p.fields, PlanField{Field: "spec." + secret}) // its values stay secret
	}
	if p.action == planUpdate {
		p.decide(before.Kind, made.Spec)
	}
	return p
}

// decide says how the differences are removed.
func (p *plan) decide(kind domain.Kind, spec json.RawMessage) {
	if len(p.fields) == 0 {
		p.action = planNone
		return
	}
	isServer := kind == domain.KindMachine || kind == domain.KindDeployment
	var s domain.DeploymentSpec
	_ = json.Unmarshal(spec, &s) // it was checked
	// No server of such a deployment may be missing: it gets new ones, because a change would interrupt the old ones.
	surges := kind == domain.KindDeployment && s.MaxUnavailable != nil && *s.MaxUnavailable == 0
	replaces := isServer && s.Update == domain.UpdateReplace
	notes := map[string]bool{}
	for _, f := range p.fields {
		if isSameSet(f) || slices.Contains(p.same, f.Field) {
			continue
		}
		isFixed := slices.ContainsFunc(replaced[kind], func(name string) bool { return f.Field == "spec."+name })
		isTyped := isServer && (f.Field == "spec.flavor" || f.Field == "spec.image")
		switch {
		case isFixed && isServer && !replaces:
			notes[noteFixed] = true
		case isTyped && (replaces || surges), isFixed:
			p.action = planReplace
			notes[noteReplaced] = isServer
		case f.Field == "spec.image" && isServer:
			notes[noteRebuilt] = true
		}
	}
	for _, note := range []string{noteFixed, noteReplaced, noteRebuilt} {
		if notes[note] {
			p.note = strings.TrimPrefix(p.note+"; "+note, "; ")
		}
	}
}

// defaults are the values of fields that have none.
var defaults = map[string][]string{"spec.security_groups": {"default"}, "spec.content_type": {"text/plain"}}

// isSameSet reports whether a field has the same values in another order, or its default. Networks have an order.
func isSameSet(f PlanField) bool {
	set := func(value any) []string {
		all := texts(value)
		if len(all) == 0 {
			all = defaults[f.Field]
		}
		return slices.Compact(slices.Sorted(slices.Values(all)))
	}
	return f.Field != "spec.networks" && len(set(f.From)) > 0 && slices.Equal(set(f.From), set(f.To))
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
	for _, kind := range []domain.Kind{domain.KindMachine, domain.KindDeployment} {
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
	put("schedule", showSchedule(m.Schedule), reflect.ValueOf(m.Schedule).IsZero())
	put("repair", m.Repair, false)
	put("max_revisions", m.MaxRevisions, false)
	for name, value := range fields(m.Spec) {
		all["spec."+name] = value
	}
	return all
}
