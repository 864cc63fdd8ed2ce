package managed

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// surplusField is the field of the drift that an unexpected object is.
const surplusField = "unexpected_object"

// surplusKept is how long an object that no scan finds is remembered: a cell of Nova may be down for some time.
const surplusKept = 24 * time.Hour

// findSurplus finds the objects that carry a mark and belong to no member, such as a server that Nova did not find for
// a while, and that was made again. Each is an event when two scans have found it, and drift of the resource that has
// its name. It is never deleted. Between scans what the last one has found stays.
func (r *round) findSurplus(ctx context.Context) error {
	listed, seen, found := r.listedObjects()
	if len(listed) > 0 {
		err := r.Store.ForgetUnexpected(ctx, r.claim, r.project.ProjectID, listed, seen, surplusKept)
		if err != nil {
			return err
		}
	}
	var reported []string
	if len(found) > 0 {
		all, err := r.Store.SaveUnexpected(ctx, r.claim, r.project.ProjectID, found, domain.MissedFor)
		if err != nil {
			return err
		}
		reported = all
	}
	slices.Sort(reported)
	for _, m := range r.resources {
		if _, isListed := r.marked[listing{m.driver, m.Schedule.Region}]; !isListed {
			m.surplus = m.lastSurplus()
			continue
		}
		for _, id := range reported {
			n := slices.IndexFunc(found, func(o domain.UnexpectedObject) bool { return o.ObjectID == id })
			if n >= 0 && m.isNamed(found[n]) {
				m.surplus = append(m.surplus, domain.Drift{Field: surplusField, Actual: id})
			}
		}
	}
	return nil
}

// lastSurplus returns what the last scan has found.
func (m *resource) lastSurplus() []domain.Drift {
	return slices.DeleteFunc(slices.Clone(m.Drift), func(d domain.Drift) bool { return d.Field != surplusField })
}

// listedObjects returns the providers and regions that a scan has listed, the ids of all objects that carry a mark, and
// those of them that belong to no member.
func (r *round) listedObjects() (listed []domain.UnexpectedObject, seen []string, found []domain.UnexpectedObject) {
	known := map[string]bool{} // members and their objects
	for _, m := range r.resources {
		for _, member := range m.Members {
			known[member.ID.String()], known[member.ObjectID] = true, true
		}
	}
	for key, objects := range r.marked {
		for mark, o := range objects { // a server may carry several ids
			known[o.ID] = known[o.ID] || known[mark.String()]
		}
		provider, _ := domain.ProviderOf(key.driver.Kinds()[0])
		listed = append(listed, domain.UnexpectedObject{Provider: provider.Name, Region: key.region})
		for _, o := range objects {
			seen = append(seen, o.ID)
			if !known[o.ID] && o.State != ObjectDeleting {
				known[o.ID] = true
				found = append(found, domain.UnexpectedObject{
					ObjectID: o.ID, Name: o.Name, Provider: provider.Name, Region: key.region,
				})
			}
		}
	}
	return listed, seen, found
}

// isNamed reports whether an object has the name that an object of the resource has.
func (m *resource) isNamed(o domain.UnexpectedObject) bool {
	provider, _ := domain.ProviderOf(m.Kind)
	if provider.Name != o.Provider || m.Schedule.Region != o.Region {
		return false
	}
	if m.Kind != domain.KindDeployment {
		return o.Name == m.Name
	}
	ordinal, ok := strings.CutPrefix(o.Name, m.Name+"-")
	n, err := strconv.Atoi(ordinal)
	return ok && err == nil && m.NameOf(domain.Member{Ordinal: n}) == o.Name
}
