package managed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// member is a member whose server is ready, of revision 1; change changes it.
func member(ordinal int, change ...func(*observed)) observed {
	s := observed{
		member: domain.Member{
			ID: uuid.New(), Ordinal: ordinal, Revision: 1, ObjectID: fmt.Sprint("o", ordinal),
			Status: domain.MemberReady, WasReady: true, MayHaveData: true,
			UpdatedAt: testNow.Add(-time.Hour),
		},
		object:  Object{ID: fmt.Sprint("o", ordinal), State: ObjectReady},
		isFound: true,
	}
	for _, one := range change {
		one(&s)
	}
	return s
}

func state(to ObjectState) func(*observed) { return func(s *observed) { s.object.State = to } }

// status is of a member whose object never worked, unless it is Ready, Updating or Deleting.
func status(to domain.MemberStatus) func(*observed) {
	return func(s *observed) {
		s.member.Status = to
		s.member.WasReady = to != domain.MemberCreating && to != domain.MemberError
		s.member.MayHaveData = s.member.WasReady
	}
}

// failing is in ERROR, which is stored.
func failing(s *observed) {
	s.object.State, s.object.Reason = ObjectError, "No valid host"
	s.member.Status, s.member.Reason, s.member.Written = domain.MemberError, "No valid host", fault
}

// incomplete works, and was never as declared.
func incomplete(s *observed) { s.member.WasReady = false }

// pausing may not be tried again yet.
func pausing(s *observed) { s.member.RetryAt = testNow.Add(time.Second) }

func unlike(way Way, disrupts bool) func(*observed) {
	return func(s *observed) {
		s.differences = append(s.differences, Difference{Field: "flavor", Way: way, Disrupts: disrupts})
	}
}

// updated has the revision 2.
func updated(s *observed) { s.member.Revision = 2 }

// absent has no object; lost had one, which others deleted.
func absent(s *observed) { s.object, s.isFound, s.member.ObjectID = Object{}, false, "" }
func lost(s *observed)   { s.object, s.isFound = Object{}, false }

// forgotten is remembered for an open call after others have deleted its object, which is there again; of unknown it is
// not known.
func forgotten(s *observed) {
	lost(s)
	d := planner{now: testNow}
	requested(s)
	justNow(s)
	d.forget(*s)
	s.member, s.object, s.isFound = d.steps[0].member, Object{ID: s.member.ObjectID, Raw: "it"}, true
}
func unknown(s *observed) { s.object.State, s.object.Raw = ObjectWorking, nil }
func off(s *observed)     { s.object.Reason = "SHUTOFF" }

// wrote has had so many changes of what differs accepted, an hour ago.
func wrote(times int) func(*observed) {
	return func(s *observed) {
		s.member.Status, s.member.Reason = domain.MemberUpdating, changing(s.differences)
		s.member.Written, s.member.Writes = s.trace(), times
	}
}

// requested has a create call without an answer.
func requested(s *observed) { s.member.IsRequested = true }

func justNow(s *observed) { s.member.UpdatedAt = testNow }

// of is a deployment of revision 1.
func of(count, maxUnavailable int) target {
	return target{
		count: count, maxUnavailable: maxUnavailable, surges: maxUnavailable == 0, revision: 1, isDeployment: true,
	}
}

// single is a resource of one object.
func single() target { return target{count: 1, maxUnavailable: 1, surges: true, revision: 1} }

func changed(t target, change func(*target)) target { change(&t); return t }

func second(t *target) { t.revision = 2 }

// stepsOf are the steps by action and ordinal, sorted.
func stepsOf(p plan) string {
	var all []string
	for _, s := range p.steps {
		all = append(all, fmt.Sprintf("%s %d", s.action, s.member.Ordinal))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func TestDecide(t *testing.T) {
	t.Parallel()
	outdated := func(ordinal int, way Way, change ...func(*observed)) observed {
		return member(ordinal, append([]func(*observed){unlike(way, true)}, change...)...)
	}
	accepted := wrote(1)
	all := func(count int, way Way) (members []observed) {
		for n := range count {
			members = append(members, outdated(n, way))
		}
		return members
	}
	unlisted := func(s *observed) { s.isUnlisted = true }
	rebuilding := status(domain.MemberUpdating)
	repairs := changed(single(), func(t *target) { t.repairs = true })
	follows := func(s *observed) { s.differences = []Difference{{Way: InPlace, Follows: true}} }
	rolls := func(s *observed) { s.differences = []Difference{{Way: Replace, Follows: true}} }
	keep := func(s *observed) { s.object.Keep = true }
	calm := unlike(InPlace, false)
	to := func(count, maxUnavailable int) target { return changed(of(count, maxUnavailable), second) }
	single2 := changed(single(), second)
	for name, tc := range map[string]struct {
		target  target
		members []observed
		want    string
	}{
		"new":         {of(2, 1), nil, "create 0, create 1"},
		"as declared": {of(2, 1), []observed{member(0), member(1)}, ""},
		"being made":  {of(1, 1), []observed{member(0, status(domain.MemberCreating), state(ObjectWorking))}, ""},
		"open, declared": {
			to(1, 1), []observed{member(0, status(domain.MemberCreating), absent, requested)}, "create 0",
		},
		"failing, declared": {to(1, 1), []observed{
			member(0, status(domain.MemberCreating), absent, requested, func(s *observed) { s.member.Attempts = 5 }),
		}, "create 0, delete 0"},
		"waiting, declared": {to(1, 1), []observed{
			member(0, status(domain.MemberCreating), absent, requested, pausing,
				func(s *observed) { s.member.IsWaiting = true }),
		}, "create 0, delete 0"},
		"made":           {of(1, 1), []observed{member(0, status(domain.MemberCreating))}, "record 0"},
		"a process died": {of(1, 1), []observed{member(0, status(domain.MemberCreating), absent)}, "create 0"},
		"incomplete":     {single(), []observed{member(0, state(ObjectIncomplete))}, "create 0"},
		"vanished while made": {
			of(1, 1), []observed{member(0, status(domain.MemberCreating), lost)}, "record 0",
		},
		"waits for a retry": {of(1, 1), []observed{member(0, status(domain.MemberCreating), absent, pausing)}, ""},

		"scaled up":         {of(3, 1), []observed{member(0), member(2)}, "create 1"},
		"scaled down":       {of(1, 1), []observed{member(0), member(1), member(2)}, "delete 1, delete 2"},
		"the broken first":  {of(1, 1), []observed{member(0, state(ObjectError)), member(1)}, "delete 0"},
		"the stopped first": {of(1, 1), []observed{member(0, off), member(1)}, "delete 0"},
		"no rebuilt one before the unlisted": {
			of(1, 1),
			[]observed{member(0, state(ObjectWorking), unlisted), member(1, rebuilding, state(ObjectWorking))},
			"",
		},
		"no broken one before what was not found": {
			of(1, 1), []observed{
				member(0, state(ObjectError)),
				member(1, state(ObjectWorking), unlisted, func(s *observed) { s.member.MissedAt = testNow }),
			}, "record 0",
		},
		"which of the unlisted is not known": {
			of(1, 1),
			[]observed{member(0, state(ObjectWorking), unlisted), member(1, state(ObjectWorking), unlisted)},
			"",
		},
		"the broken before the unlisted": {
			of(1, 1), []observed{member(0, state(ObjectError)), member(1, state(ObjectWorking), unlisted)}, "delete 0",
		},
		"the deleted first": {
			of(1, 1), []observed{member(0, state(ObjectDeleting)), member(1, off)}, "delete 0, record 1",
		},
		"scaled to none": {of(0, 1), []observed{member(0), member(1)}, "delete 0, delete 1"},
		"being deleted": {
			of(0, 1), []observed{member(0, status(domain.MemberDeleting), state(ObjectDeleting))}, "",
		},
		"deleted again":      {of(0, 1), []observed{member(0, status(domain.MemberDeleting))}, "delete 0"},
		"gone":               {of(0, 1), []observed{member(0, status(domain.MemberDeleting), lost)}, "forget 0"},
		"an ordinal is free": {of(1, 1), []observed{member(0, status(domain.MemberDeleting))}, "create 0, delete 0"},
		"may still appear": {
			of(0, 1), []observed{member(0, status(domain.MemberDeleting), absent, requested, justNow)}, "",
		},
		"not found once": {
			of(0, 1), []observed{member(0, status(domain.MemberDeleting), absent, requested, func(s *observed) {
				s.isMissed = true
			})}, "",
		},
		"rejected and open": {
			of(0, 1), []observed{member(0, status(domain.MemberError), absent, requested, justNow)}, "delete 0",
		},
		"rejected": {of(0, 1), []observed{member(0, status(domain.MemberError), absent)}, "forget 0"},

		"deleted by others":        {of(2, 1), []observed{member(0), member(1, lost)}, "create 1, forget 1"},
		"single deleted by others": {single(), []observed{member(0, lost)}, ""},
		"single repaired":          {repairs, []observed{member(0, lost)}, "create 0, forget 0"},
		"repaired, call open":      {repairs, []observed{member(0, lost, requested, justNow)}, "create 0, record 0"},
		"excess lost, call open":   {of(0, 1), []observed{member(0, lost, requested, justNow)}, "record 0"},
		"lost while made, call open": {
			of(1, 1), []observed{member(0, status(domain.MemberError), lost, requested, justNow)}, "create 0, record 0",
		},
		"lost, and its cell is down": {single(), []observed{member(0), member(0, forgotten, unknown)}, ""},
		"lost, and there again":      {single(), []observed{member(0), member(0, forgotten)}, "forget 0"},
		"single declared since": {
			changed(single(), func(t *target) { t.isNew = true }), []observed{member(0, lost)}, "create 0, forget 0",
		},
		"deletion of a deleted one": {
			changed(single(), func(t *target) { t.count = 0 }), []observed{member(0, lost)}, "forget 0",
		},
		"others delete it":         {of(1, 1), []observed{member(0, state(ObjectDeleting))}, ""},
		"drift is shown":           {single(), []observed{outdated(0, InPlace)}, ""},
		"drift is repaired":        {repairs, []observed{outdated(0, InPlace)}, "update 0"},
		"what follows is no drift": {single(), []observed{member(0, follows)}, "update 0"},

		"other files, one by one": {of(2, 1), []observed{member(0, rolls), member(1, rolls)}, "create 0, delete 0"},
		"other files, one more":   {single(), []observed{member(0, rolls)}, "create 0"},
		"other files, while one builds": {
			of(2, 1), []observed{member(0, state(ObjectWorking)), member(1, rolls)}, "",
		},

		"ERROR is recorded":      {of(1, 1), []observed{member(0, state(ObjectError))}, "record 0"},
		"ERROR is left alone":    {of(1, 1), []observed{member(0, failing)}, ""},
		"ERROR in an update":     {to(1, 1), []observed{member(0, failing)}, ""},
		"ERROR is repaired":      {repairs, []observed{member(0, failing)}, "create 0, delete 0"},
		"ERROR, then declared":   {to(1, 1), []observed{member(0, failing)}, ""},
		"ERROR, another needed":  {to(1, 1), []observed{outdated(0, Replace, failing)}, "create 0, delete 0"},
		"ERROR, one in place":    {to(1, 1), []observed{outdated(0, InPlace, failing)}, ""},
		"ERROR, one refused":     {to(1, 1), []observed{outdated(0, Replace, unlike(Refused, true), failing)}, ""},
		"ERROR since declared":   {to(1, 1), []observed{member(0, state(ObjectError))}, "record 0"},
		"ERROR of an incomplete": {single2, []observed{member(0, updated, incomplete, failing)}, ""},
		"incomplete, recorded":   {single2, []observed{member(0, updated, incomplete, state(ObjectError))}, "record 0"},
		"incomplete, made otherwise": {
			single2, []observed{outdated(0, Replace, updated, incomplete)}, "",
		},
		"incomplete, repaired": {
			changed(repairs, second), []observed{outdated(0, Replace, updated, incomplete)}, "create 0",
		},
		"a volume, declared":   {single2, []observed{outdated(0, Replace, failing, keep)}, ""},
		"a volume, repaired":   {repairs, []observed{member(0, failing, keep)}, ""},
		"an end of ERROR":      {of(1, 1), []observed{member(0, failing, state(ObjectReady), off)}, "record 0"},
		"drift after ERROR":    {single(), []observed{outdated(0, InPlace, failing, state(ObjectReady))}, "record 0"},
		"ERROR counts as down": {to(2, 1), []observed{member(0, failing), outdated(1, Replace)}, ""},
		"ERROR waits": {
			of(1, 1), []observed{member(0, state(ObjectError), status(domain.MemberError), pausing)}, "",
		},
		"ERROR is made again": {
			of(1, 1), []observed{member(0, state(ObjectError), status(domain.MemberError))}, "create 0, delete 0",
		},
		"a refusal waits": {of(1, 1), []observed{member(0, absent, status(domain.MemberError), pausing)}, ""},
		"a refusal is retried": {of(1, 1), []observed{member(0, absent, status(domain.MemberError), func(s *observed) {
			s.member.Reason = "quota"
		})}, "create 0, forget 0"},
		"data is kept": {single(), []observed{member(0, state(ObjectError), keep)}, "record 0"},
		"no data yet": {
			single(), []observed{member(0, state(ObjectError), status(domain.MemberError), keep)}, "create 0, delete 0",
		},

		"nothing differs": {to(1, 1), []observed{member(0)}, "record 0"},
		"one at a time":   {to(3, 1), all(3, InPlace), "update 0"},
		"two at a time":   {to(3, 2), all(3, InPlace), "update 0, update 1"},
		"one is down already": {
			to(2, 1), []observed{outdated(0, InPlace), member(1, updated, state(ObjectWorking))}, "",
		},
		"a stopped one is free": {
			to(2, 1), []observed{outdated(0, InPlace), member(1, off, unlike(InPlace, true))}, "update 1",
		},
		"no interruption":        {to(2, 1), []observed{member(0, calm), member(1, calm)}, "update 0, update 1"},
		"replaced one by one":    {to(2, 1), all(2, Replace), "create 0, delete 0"},
		"one more first":         {to(2, 0), all(2, Replace), "create 0"},
		"the replacement builds": {to(2, 0), append(all(2, Replace), member(0, updated, state(ObjectWorking))), ""},
		"the replacement works":  {to(2, 0), append(all(2, Replace), member(0, updated)), "create 1, delete 0"},
		"one has gone meanwhile": {
			to(3, 0), []observed{member(0, updated), outdated(1, Replace), member(1, updated)}, "create 2",
		},
		"one is missing": {
			to(2, 0), []observed{outdated(1, Replace), member(1, updated, state(ObjectWorking))}, "create 0",
		},
		"then the next":        {to(2, 0), []observed{outdated(1, Replace), member(0, updated)}, "create 1"},
		"single replaced":      {single2, []observed{outdated(0, Replace)}, "create 0"},
		"single was replaced":  {single2, []observed{outdated(0, Replace), member(0, updated)}, "delete 0"},
		"single in place":      {single2, []observed{outdated(0, InPlace)}, "update 0"},
		"a change has failed":  {single2, []observed{outdated(0, InPlace, accepted, justNow)}, ""},
		"it is repeated later": {single2, []observed{outdated(0, InPlace, accepted)}, "update 0"},
		"it has failed twice":  {single2, []observed{outdated(0, InPlace, wrote(2))}, ""},
		"another change":       {single2, []observed{outdated(0, InPlace, status(domain.MemberUpdating))}, "update 0"},
		"a confirmation goes on": {single2, []observed{outdated(0, InPlace, accepted, func(s *observed) {
			s.differences[0].Continues = true
			wrote(4)(s)
		})}, "update 0"},
		"refused":               {single2, []observed{outdated(0, Refused)}, ""},
		"rolled back half-way":  {to(2, 1), []observed{outdated(0, InPlace), member(1, updated)}, "update 0"},
		"scaled while replaced": {to(1, 1), []observed{outdated(0, Replace), member(1, updated)}, "delete 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := stepsOf(decide(tc.target, tc.members, testNow)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestReplacedNoMore: when the replacement of a server is not declared any more, the server stays, and not what was
// made to replace it.
func TestReplacedNoMore(t *testing.T) {
	t.Parallel()
	old, other := member(0), member(0, updated)
	old.member.CreatedAt, other.member.CreatedAt = testNow.Add(-time.Hour), testNow
	hidden := old // in a cell that is down
	hidden.object.State = ObjectWorking
	broken := old // others have broken it, and repair is manual: its disk is kept
	failing(&broken)
	for _, all := range [][]observed{{old, other}, {other, old}, {hidden, other}, {broken, other}, {other, broken}} {
		p := decide(changed(single(), func(t *target) { t.revision = 3 }), all, testNow)
		if len(p.steps) == 0 || p.steps[0].action != actDelete || p.steps[0].member.ID != other.member.ID {
			t.Errorf("the steps are %+v", p.steps)
		}
	}
}

// TestDecideEnds: the steps reach what is declared, and never interrupt more servers than they may.
func TestDecideEnds(t *testing.T) {
	t.Parallel()
	for _, way := range []Way{InPlace, Replace} {
		for _, most := range []int{0, 1, 3} {
			for _, from := range []int{0, 3, 8} {
				t.Run(fmt.Sprintf("%s %d from %d", way, most, from), func(t *testing.T) {
					t.Parallel()
					way, to := way, changed(of(5, most), second)
					if most == 0 && way == InPlace {
						way = Replace // as match does
					}
					var all []observed
					for n := range from {
						all = append(all, member(n, unlike(way, true)))
					}
					for passes := 0; ; passes++ {
						p := decide(to, all, testNow)
						if len(p.steps) == 0 && p.updated == 5 && p.current == 5 {
							break
						}
						if passes == 100 {
							t.Fatalf("it does not end: %+v", p)
						}
						available := working(all)
						all = simulate(all, p)
						if left := working(all); left < available && left < 5-most {
							t.Fatalf("only %d work", left)
						}
					}
				})
			}
		}
	}
}

// working counts the members that work.
func working(all []observed) (n int) {
	for _, s := range all {
		if s.isAvailable() {
			n++
		}
	}
	return n
}

// simulate takes the steps as OpenStack would: what was begun before ends, what is begun now takes a pass.
func simulate(all []observed, p plan) []observed {
	var after []observed
	for _, s := range all {
		switch {
		case s.object.State == ObjectDeleting:
			s.isFound = false
		case s.isFound && s.object.State == ObjectWorking:
			s.object.State = ObjectReady
		}
		after = append(after, s)
	}
	for _, step := range p.steps {
		n := slices.IndexFunc(after, func(s observed) bool { return s.member.ID == step.member.ID })
		switch step.action {
		case actCreate:
			made := step.member
			made.ObjectID, made.UpdatedAt = made.ID.String(), testNow
			after = append(after, observed{
				member: made, isFound: true, object: Object{ID: made.ObjectID, State: ObjectWorking},
			})
		case actForget:
			after = slices.Delete(after, n, n+1)
		case actRecord:
			after[n].member = step.member
		case actUpdate:
			after[n].object.State, after[n].differences = ObjectWorking, nil
		case actDelete:
			after[n].member.Status, after[n].object.State = domain.MemberDeleting, ObjectDeleting
		}
	}
	return after
}
