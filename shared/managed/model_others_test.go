package managed

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// othersChange has others change an object.
func (w *modelWorld) othersChange(r *rand.Rand) {
	w.cloud.mu.Lock()
	defer w.cloud.mu.Unlock()
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.cloud.settle()
	all := slices.DeleteFunc(slices.Clone(w.cloud.objects), func(o *modelObject) bool { return o.isDeleted })
	if len(all) == 0 {
		return
	}
	o, what := oneOf(r, all...), ""
	isKnown := w.store.members[o.member].ObjectID == o.id
	isOld := time.Since(o.madeAt) >= copyAfter // what is younger may be a creation whose answer was lost
	switch n := r.IntN(10); {
	case o.kind == domain.KindSecret, n == 0:
		what = w.cloud.othersDelete(o)
	case n == 1 && isKnown:
		what = "remove marks of"
		delete(o.volume.Metadata, markKey)
		o.image.Tags, o.balancer.Tags = nil, nil
		o.server.Tags = slices.DeleteFunc(o.server.Tags, func(string) bool { return r.IntN(2) == 0 })
	case n == 2:
		what = "rename"
		o.volume.Name, o.image.Name, o.balancer.Name, o.server.Name = "theirs", "theirs", "theirs", "theirs"
		o.server.UpdatedAt = time.Now()
	case n >= 3 && n < 6 && isKnown && isOld:
		what = w.cloud.othersCopy(o)
	case n == 1: // without its mark, nothing finds it before its id is stored
	case o.kind == domain.KindVolume:
		what = othersChangeVolume(r, o)
	case o.kind == domain.KindImage:
		what = othersChangeImage(o)
	case o.kind == domain.KindBalancer:
		what = othersChangeBalancer(r, o)
	case o.kind == domain.KindMachine:
		what = w.cloud.othersChangeServer(r, o)
	}
	if what != "" {
		w.record("others %s %s %s (%.8s)", what, o.kind, o.label, o.id)
	}
}

// othersDelete has others delete an object, if its service takes that now.
func (c *modelCloud) othersDelete(o *modelObject) string {
	isBusy := o.kind == domain.KindVolume && o.volume.Status != "available" ||
		o.kind == domain.KindBalancer && o.balancer.Status != active && o.balancer.Status != "ERROR" ||
		o.server.Task == "deleting"
	switch {
	case isBusy:
		return ""
	case o.kind == domain.KindMachine:
		c.deleteServer(o)
	default:
		o.isDeleted = true
	}
	return "delete"
}

// othersCopy has others copy an object with its mark.
func (c *modelCloud) othersCopy(o *modelObject) string {
	isWhole := o.kind == domain.KindVolume && (o.volume.Status == "available" || o.volume.Status == "in-use") ||
		o.image.Status == "active" || o.balancer.Status == active || o.server.Status == "ACTIVE" && o.server.Task == ""
	if !isWhole {
		return ""
	}
	other, now := *o, time.Now()
	other.id, other.label = idOf("copy", o.id, len(c.objects)), "copy of "+o.label
	other.changes, other.isForeign = nil, true
	other.volume, other.server = modelVolume(o), modelServer(o)
	other.image, other.balancer = modelImage(o), modelBalancer(o)
	other.volume.ID, other.volume.CreatedAt, other.volume.Status = other.id, now, "available"
	other.volume.Servers, other.server.VolumeIDs = nil, nil
	other.image.ID, other.image.CreatedAt = other.id, now
	other.balancer.ID, other.balancer.CreatedAt, other.balancer.Listeners = other.id, now, nil
	other.server.ID, other.server.CreatedAt = other.id, now
	c.add(&other)
	return "copy"
}

func othersChangeVolume(r *rand.Rand, o *modelObject) string {
	switch {
	case r.IntN(2) == 0:
		o.volume.Metadata["a"] = "theirs"
		return "change the metadata of"
	case o.volume.Status == "available":
		o.isVolume("error")
		return "break"
	case o.volume.Status == "error":
		o.isVolume("available")
		return "heal"
	}
	return ""
}

func othersChangeImage(o *modelObject) string {
	switch o.image.Status {
	case "active":
		o.image.Status = "deactivated"
		return "deactivate"
	case "deactivated":
		o.image.Status = "active"
		return "reactivate"
	}
	return ""
}

func othersChangeBalancer(r *rand.Rand, o *modelObject) string {
	switch {
	case o.balancer.Status == "ERROR":
		o.isBalancer(active)
		return "heal"
	case o.balancer.Status != active:
		return ""
	case r.IntN(2) == 0:
		o.isBalancer("ERROR")
		return "break"
	case len(o.balancer.Listeners) > 0:
		deleteListener(&o.balancer, o.balancer.Listeners[0].ID)
		return "delete a listener of"
	}
	return ""
}

func (c *modelCloud) othersChangeServer(r *rand.Rand, o *modelObject) string {
	isIdle := o.server.Status == "ACTIVE" && o.server.Task == "" && len(o.changes) == 0
	switch r.IntN(4) {
	case 0:
		if o.server.Status == "SHUTOFF" {
			o.isServer("ACTIVE")
			return "start"
		}
		if isIdle {
			o.isServer("SHUTOFF")
			return "stop"
		}
	case 1:
		if o.server.Status == "ERROR" && o.hasData {
			o.isServer("ACTIVE")
			o.server.Fault = nil
			return "reset"
		}
		if isIdle {
			o.isServer("ERROR")
			o.server.Fault = &domain.Fault{Code: 500, Message: "the host is away"}
			return "break"
		}
	case 2:
		if isIdle && len(o.server.VolumeIDs) > 0 {
			c.detach(o, o.server.VolumeIDs[0])
			return "detach a volume of"
		}
	default:
		if o.server.Metadata["a"] != "" {
			o.server.Metadata["a"] = "theirs"
			return "change the metadata of"
		}
	}
	return ""
}
