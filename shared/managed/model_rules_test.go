package managed

import (
	"cmp"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// owned is an object with the member and the resource that it is of, under the locks of both.
type owned struct {
	w      *modelWorld
	by     *modelRun // that deletes it
	object *modelObject
	member domain.Member
	m      *domain.Managed // nil = it is of none
}

// permits are the rules by which an object that was ready once may be deleted.
var permits = []struct {
	name  string
	holds func(o owned) bool
}{
	{"its resource is deleted", func(o owned) bool {
		return o.m != nil && o.m.Request == domain.ManagedDelete && !o.m.Orphan
	}},
	{"its deletion was decided by a rule before", func(o owned) bool { return o.w.doomed[o.object.member] }},
	{"it was never stored that it worked", func(o owned) bool { return o.m != nil && !o.member.MayHaveData }},
	{"it was made twice", func(o owned) bool {
		return o.member.ObjectID != o.object.id && len(o.w.twins(o.object)) > 1
	}},
	{"fewer servers are declared", func(o owned) bool {
		return o.m != nil && o.m.Kind.IsDeployment() &&
			o.w.servers(o.m) > read[domain.DeploymentSpec](o.m.Spec).Count
	}},
	{"its update is to replace it", owned.isReplaced},
	{"it was made to replace an older server, which is not to be replaced any more", func(o owned) bool {
		return o.m != nil && o.m.Kind == domain.KindMachine && o.w.hasOlder(o)
	}},
	{"it is a server in ERROR, and repair is auto", func(o owned) bool {
		return o.m != nil && o.object.server.Status == "ERROR" && o.m.Repair == domain.RepairAuto
	}},
}

// permit is the rule by which a process may delete an object; "" = none. What is declared now counts, and what was when
// the pass has loaded it. The cloud is locked.
func (w *modelWorld) permit(object *modelObject, by *modelRun) string {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	o := owned{w: w, by: by, object: object, member: w.store.members[object.member]}
	loaded, isLoaded := by.loaded[o.member.ManagedID]
	for _, rule := range permits {
		o.m = w.store.byID(o.member.ManagedID)
		isHeld := rule.holds(o)
		if o.m != nil && isLoaded {
			o.m = &loaded
			isHeld = isHeld || rule.holds(o)
		}
		if isHeld && !object.isForeign {
			return rule.name
		}
	}
	return ""
}

// dooms records that it is stored of a member that it is deleted, if a rule permits that now: more may be declared
// before its object is deleted.
func (w *modelWorld) dooms(m domain.Member, by *modelRun) {
	w.cloud.mu.Lock()
	defer w.cloud.mu.Unlock()
	for _, o := range w.cloud.objects {
		if o.id == m.ObjectID && !o.isDeleted && (!o.hasData || w.permit(o, by) != "") {
			w.doomed[m.ID] = true
		}
	}
}

// twins are the objects that were made with the mark of one.
func (w *modelWorld) twins(o *modelObject) (all []*modelObject) {
	for _, other := range w.cloud.objects {
		if other.kind == o.kind && other.member == o.member && !other.isDeleted && !other.isForeign {
			all = append(all, other)
		}
	}
	return all
}

// servers counts those of a deployment that are not being deleted.
func (w *modelWorld) servers(m *domain.Managed) (count int) {
	for _, o := range w.cloud.objects {
		if o.kind == domain.KindMachine && !o.isDeleted && !o.isForeign && o.server.Task != "deleting" &&
			w.store.members[o.member].ManagedID == m.ID {
			count++
		}
	}
	return count
}

// hasOlder reports whether the resource has another server, which is older.
func (w *modelWorld) hasOlder(o owned) bool {
	return w.has(o.m, func(other *modelObject) bool {
		return other.madeAt.Before(o.object.madeAt) && other.server.Task != "deleting"
	})
}

// isReplaced reports whether the declaration cannot be reached with the object, and says that another one is made.
func (o owned) isReplaced() bool {
	if o.m == nil {
		return false
	}
	made := o.w.store.revisions[o.m.ID][o.member.Revision]
	switch o.object.kind {
	case domain.KindMachine:
		now, was := read[domain.DeploymentSpec](o.m.Spec), read[domain.DeploymentSpec](made.Spec)
		isOther := now.Flavor != o.object.server.Flavor.Name || now.Image != was.Image ||
			o.object.server.Image.ID != "image-"+now.Image // by a rebuild for another revision
		isFixed := !slices.Equal(now.Configmaps, was.Configmaps) || !slices.Equal(o.m.Digest, made.Digest) ||
			o.m.Schedule.Affinity != made.Schedule.Affinity || o.hasOtherFiles(now.MachineSpec)
		surges := o.m.Kind.IsDeployment() && now.MaxUnavailable != nil && *now.MaxUnavailable == 0
		return now.Update == domain.UpdateReplace && (isOther || isFixed) || surges && isOther
	case domain.KindImage:
		return sumOf(o.m.Spec) != o.object.image.SHA512
	case domain.KindSecret:
		now, was := read[domain.SecretSpec](o.m.Spec), read[domain.SecretSpec](made.Spec)
		return now != was || !slices.Equal(o.m.Digest, made.Digest)
	}
	return false
}

// hasOtherFiles reports whether a server has other files of its configmaps than those that are declared, or were when
// the pass has loaded them.
func (o owned) hasOtherFiles(spec domain.MachineSpec) bool {
	loaded := slices.Collect(maps.Values(o.by.loaded))
	return o.object.userData != filesOf(spec, o.w.store.declared()) || o.object.userData != filesOf(spec, loaded)
}

// filesOf are the user_data of a server of a spec.
func filesOf(spec domain.MachineSpec, declared []domain.Managed) string {
	files, _ := NewInventory(declared, nil).files(spec)
	userData, _ := WithFiles("", files)
	return userData.Reveal()
}

// sumOf is the checksum of the content of an image.
func sumOf(spec json.RawMessage) string {
	content, _ := base64.StdEncoding.DecodeString(read[domain.ImageSpec](spec).Content)
	sum := sha512.Sum512(content)
	return hex.EncodeToString(sum[:])
}

// modelProblem is what is not as declared.
type modelProblem struct {
	m    *domain.Managed // nil = something is left over
	text string
}

// problems compares what is declared with the objects that there are.
func (w *modelWorld) problems() (all []modelProblem) {
	w.cloud.mu.Lock()
	defer w.cloud.mu.Unlock()
	w.cloud.settle()
	byID := map[string]*modelObject{}
	for _, o := range w.cloud.objects {
		if !o.isDeleted {
			byID[o.id] = o
		}
	}
	for _, m := range w.store.resources {
		add := func(format string, args ...any) {
			all = append(all, modelProblem{m, fmt.Sprintf("%s %s: ", m.Kind, m.Name) + fmt.Sprintf(format, args...)})
		}
		if m.Request == domain.ManagedDelete {
			add("it is not deleted")
		} else if m.Status != domain.ManagedReady {
			add("it is %s", m.Status)
		}
		count := 0
		for _, member := range w.store.members {
			if member.ManagedID != m.ID {
				continue
			}
			count++
			if m.Kind == domain.KindConfigmap {
				continue
			}
			o := byID[member.ObjectID]
			switch {
			case o == nil:
				add("member %d has no object", member.Ordinal)
			case o.member != member.ID:
				add("member %d has the object of another one", member.Ordinal)
			default:
				for _, text := range w.differences(m, member, o) {
					add("%s: %s", o.label, text)
				}
			}
		}
		declared := 1
		if m.Kind == domain.KindDeployment {
			declared = read[domain.DeploymentSpec](m.Spec).Count
		}
		if count != declared {
			add("it has %d members of %d", count, declared)
		}
	}
	for _, o := range byID {
		member, isKnown := w.store.members[o.member] // it has no id while its resource waits
		isOwn := isKnown && (member.ObjectID == o.id || member.ObjectID == "" && len(w.twins(o)) == 1)
		of := w.store.byID(member.ManagedID) // what was made twice of it stays, too
		isOrphaned := w.store.orphans[o.member] || of != nil && of.Request == domain.ManagedDelete && of.Orphan
		if !isOwn && !o.isForeign && !isOrphaned {
			all = append(all, modelProblem{nil, fmt.Sprintf("%s %s (%.8s) is left over", o.kind, o.label, o.id)})
		}
	}
	for name := range w.cloud.groups {
		id, _ := uuid.Parse(strings.TrimPrefix(name, "cloudfn-")[:36])
		if w.store.byID(id) == nil && !w.store.orphans[id] {
			all = append(all, modelProblem{nil, "server group " + name + " is left over"})
		}
	}
	slices.SortFunc(all, func(a, b modelProblem) int { return strings.Compare(a.text, b.text) })
	return all
}

// differences are the fields of an object that are not as declared.
func (w *modelWorld) differences(m *domain.Managed, member domain.Member, o *modelObject) (all []string) {
	is := func(field string, declared, actual any) {
		if fmt.Sprint(declared) != fmt.Sprint(actual) {
			all = append(all, fmt.Sprintf("%s is %v instead of %v", field, actual, declared))
		}
	}
	hasAll := func(field string, declared, actual map[string]string) {
		for key, value := range declared {
			is(field+"."+key, value, actual[key])
		}
	}
	// What an earlier revision declared is removed, unless others have set it.
	hasNone := func(field string, declared, actual map[string]string, of func(domain.Revision) map[string]string) {
		for _, r := range w.store.revisions[m.ID] {
			for key := range of(r) {
				_, isDeclared := declared[key]
				if one, isThere := actual[key]; isThere && !isDeclared && one != "theirs" {
					is(field+"."+key, "none", one)
				}
			}
		}
	}
	switch o.kind {
	case domain.KindVolume:
		spec := read[domain.VolumeSpec](m.Spec)
		hasNone("metadata", spec.Metadata, o.volume.Metadata, func(r domain.Revision) map[string]string {
			return read[domain.VolumeSpec](r.Spec).Metadata
		})
		is("name", m.Name, o.volume.Name)
		is("description", spec.Description, o.volume.Description)
		is("size_gb", spec.SizeGB, o.volume.SizeGB)
		hasAll("metadata", spec.Metadata, o.volume.Metadata)
		hasAll("metadata", map[string]string{markKey: member.ID.String()}, o.volume.Metadata)
		isHeld := slices.ContainsFunc(w.cloud.objects, func(server *modelObject) bool { // such as by one in ERROR
			return !server.isDeleted && slices.Contains(server.server.VolumeIDs, o.id)
		})
		if o.volume.Status != "available" && o.volume.Status != "in-use" && (o.volume.Status != "reserved" || !isHeld) {
			is("status", "available or in-use", o.volume.Status)
		}
	case domain.KindImage:
		spec := read[domain.ImageSpec](m.Spec)
		is("name", m.Name, o.image.Name)
		is("min_disk_gb", spec.MinDiskGB, o.image.MinDiskGB)
		is("content", sumOf(m.Spec), o.image.SHA512)
		is("status", "active", o.image.Status)
		hasAll("tags", set(append(memberTags(member.ID), spec.Tags...)), set(o.image.Tags))
		hasNone("tags", set(spec.Tags), set(o.image.Tags), func(r domain.Revision) map[string]string {
			return set(read[domain.ImageSpec](r.Spec).Tags)
		})
	case domain.KindBalancer:
		is("name", m.Name, o.balancer.Name)
		is("status", active, o.balancer.Status)
		hasAll("tags", set(memberTags(member.ID)), set(o.balancer.Tags))
		is("listeners", w.declaredListeners(m), listenersOf(o.balancer))
	case domain.KindSecret:
		var secrets domain.ManagedSecrets
		_ = json.Unmarshal(m.Secrets, &secrets)
		is("name", secretName(m.Name, member.ID), o.secret.Name)
		is("payload", secrets.Payload, o.payload)
	case domain.KindMachine:
		spec := read[domain.MachineSpec](m.Spec)
		is("name", m.NameOf(member), o.server.Name)
		is("status", "ACTIVE", o.server.Status)
		is("flavor", spec.Flavor, o.server.Flavor.Name)
		is("image", "image-"+spec.Image, o.server.Image.ID)
		hasAll("metadata", spec.Metadata, o.server.Metadata)
		hasAll("tags", set(append([]string{member.ID.String(), markTag}, spec.Tags...)), set(o.server.Tags))
		hasNone("tags", set(spec.Tags), set(o.server.Tags), func(r domain.Revision) map[string]string {
			return set(read[domain.MachineSpec](r.Spec).Tags)
		})
		for _, name := range spec.Volumes {
			v := w.store.find(domain.KindVolume, name)
			isAttached := false
			for _, other := range w.store.members {
				isAttached = isAttached || v != nil && other.ManagedID == v.ID &&
					slices.Contains(o.server.VolumeIDs, other.ObjectID)
			}
			is("volumes."+name, true, isAttached)
		}
		if spec.Update == domain.UpdateReplace {
			is("files", filesOf(spec, w.store.declared()), o.userData)
		}
	}
	return all
}

// declaredListeners are the listeners that a load balancer should have, with the addresses of the servers that work.
func (w *modelWorld) declaredListeners(m *domain.Managed) (all []string) {
	for _, l := range read[domain.BalancerSpec](m.Spec).Listeners {
		addresses := slices.Clone(l.Addresses)
		for _, ref := range targets(l) {
			of := w.store.find(ref.Kind, ref.Name)
			for _, o := range w.cloud.objects {
				member := w.store.members[o.member]
				isOwn := member.ObjectID == o.id || member.ObjectID == "" && !o.isForeign // it is found by its mark
				if of != nil && !o.isDeleted && member.ManagedID == of.ID && isOwn &&
					(o.server.Status == "ACTIVE" || o.server.Status == resized) {
					addresses = append(addresses, o.server.Addresses[0].IP)
				}
			}
		}
		slices.Sort(addresses)
		all = append(all, fmt.Sprint(l.Port, l.MemberPort, cmp.Or(l.Algorithm, roundRobin), slices.Compact(addresses)))
	}
	slices.Sort(all)
	return all
}

// listenersOf are those of a load balancer, in the same form.
func listenersOf(b domain.LoadBalancer) (all []string) {
	for _, l := range b.Listeners {
		if l.Pool == nil {
			all = append(all, fmt.Sprint(l.Port, " without pool"))
			continue
		}
		addresses, port := []string{}, 0
		for _, member := range l.Pool.Members {
			addresses, port = append(addresses, member.Address), member.Port
		}
		slices.Sort(addresses)
		if len(addresses) == 0 {
			port = modelPort
		}
		all = append(all, fmt.Sprint(l.Port, port, l.Pool.Algorithm, addresses))
	}
	for _, pool := range b.Unused {
		all = append(all, "unused pool "+pool.Name)
	}
	slices.Sort(all)
	return all
}

// modelPort is the port of all servers.
const modelPort = 80

// isCondition reports whether a condition of a resource has a status.
func isCondition(m *domain.Managed, kind, status string) bool {
	return slices.ContainsFunc(m.Conditions, func(c domain.Condition) bool {
		return c.Type == kind && c.Status == status && c.Reason != ""
	})
}

// excuses are the rules by which a resource need not be as declared in the end. Each says why in its reason. after says
// that it holds also when all is declared again.
var excuses = []struct {
	name  string
	after bool
	holds func(w *modelWorld, m *domain.Managed) bool
}{
	{"work on it has stopped until it is declared again", false, func(_ *modelWorld, m *domain.Managed) bool {
		return isCondition(m, domain.ConditionProgressing, "False")
	}},
	{"others have changed it, and repair is manual", true, func(_ *modelWorld, m *domain.Managed) bool {
		return len(m.Drift) > 0 && m.Repair == domain.RepairManual && m.Status == domain.ManagedDegraded
	}},
	{"only a new server can have it, and update is not replace", true, func(_ *modelWorld, m *domain.Managed) bool {
		return m.Status == domain.ManagedError && isCondition(m, domain.ConditionUpdated, "False") &&
			strings.Contains(m.Reason, "only a new server can have it") &&
			read[domain.MachineSpec](m.Spec).Update != domain.UpdateReplace
	}},
	{"its object is in error, and is kept", true, func(w *modelWorld, m *domain.Managed) bool {
		return w.has(m, func(o *modelObject) bool {
			return o.hasData && (o.volume.Status == "error" || o.balancer.Status == "ERROR" ||
				o.image.Status == "deactivated" ||
				o.server.Status == "ERROR" && m.Repair == domain.RepairManual)
		})
	}},
	{"its volume is attached to a server whose declaration was deleted alone", true, (*modelWorld).waitsForOrphan},
	{"its volume is attached to a server that waits itself", true, (*modelWorld).waitsForServer},
	{"others have stopped its server", true, func(w *modelWorld, m *domain.Managed) bool {
		return w.has(m, func(o *modelObject) bool { return o.server.Status == "SHUTOFF" })
	}},
	{"it waits for a resource that is not there, or not ready", true, func(w *modelWorld, m *domain.Managed) bool {
		driver := Driver(w.balancers)
		if m.Kind != domain.KindBalancer {
			driver = &MachineDriver{}
		}
		return m.Request != domain.ManagedDelete && slices.ContainsFunc(driver.Needs(m.Spec), func(r Ref) bool {
			needed := w.store.find(r.Kind, r.Name)
			return needed == nil || needed.Request == domain.ManagedDelete || needed.Status != domain.ManagedReady
		})
	}},
	{"it is used, and deleted after what uses it", true, func(w *modelWorld, m *domain.Managed) bool {
		isUsed := slices.ContainsFunc(w.store.resources, func(user *domain.Managed) bool {
			return slices.Contains((&MachineDriver{}).Needs(user.Spec), Ref{m.Kind, m.Name}) ||
				slices.Contains(w.balancers.Needs(user.Spec), Ref{m.Kind, m.Name})
		})
		return m.Request == domain.ManagedDelete && isUsed
	}},
}

// waitsForOrphan reports whether a server that nothing declares any more has a volume of the resource, or one that it
// names.
func (w *modelWorld) waitsForOrphan(m *domain.Managed) bool {
	return slices.ContainsFunc(w.cloud.objects, func(o *modelObject) bool {
		isOrphan := !o.isDeleted && w.store.orphans[o.member]
		return isOrphan && slices.ContainsFunc(o.server.VolumeIDs, func(id string) bool {
			return slices.ContainsFunc(w.store.resources, func(v *domain.Managed) bool {
				isNamed := m.Kind == domain.KindMachine &&
					slices.Contains(read[domain.MachineSpec](m.Spec).Volumes, v.Name)
				return (v.ID == m.ID || isNamed) && w.has(v, func(volume *modelObject) bool { return volume.id == id })
			})
		})
	})
}

// waitsForServer reports whether a server that is not as declared yet, and says why, has a volume of the resource.
func (w *modelWorld) waitsForServer(m *domain.Managed) bool {
	return slices.ContainsFunc(w.store.resources, func(user *domain.Managed) bool {
		isWaiting := user.ObservedRevision != user.Revision && user.Reason != ""
		return isWaiting && w.has(user, func(server *modelObject) bool {
			return w.has(m, func(o *modelObject) bool { return slices.Contains(server.server.VolumeIDs, o.id) })
		})
	})
}

// has reports whether a resource has an object.
func (w *modelWorld) has(m *domain.Managed, holds func(*modelObject) bool) bool {
	return slices.ContainsFunc(w.cloud.objects, func(o *modelObject) bool {
		return !o.isDeleted && !o.isForeign && w.store.members[o.member].ManagedID == m.ID && holds(o)
	})
}

// excuse is the rule by which a problem may stay; "" = none.
func (w *modelWorld) excuse(p modelProblem, isAfter bool) string {
	if p.m == nil || p.m.Reason == "" {
		return ""
	}
	for _, rule := range excuses {
		if (rule.after || !isAfter) && rule.holds(w, p.m) {
			return rule.name
		}
	}
	return ""
}
