package managed

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// modelStep is one step of a seed. What it does follows from its number and the state, so that others can be left out.
type modelStep struct {
	what string
	n    uint64
}

// modelSteps are what may happen, with their weights.
var modelSteps = []struct {
	what   string
	weight int
	do     func(w *modelWorld, r *rand.Rand)
}{
	{"pass", 40, func(w *modelWorld, r *rand.Rand) {
		d := []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 15 * time.Minute}[r.IntN(4)]
		rate := min(oneOf(r, 0, 50, 150, 400), w.mostFail)
		w.record("%s pass, of 1000 calls %d fail", d, rate)
		w.elapse(d, r.Uint64(), rate, 20)
	}},
	{"two", 6, func(w *modelWorld, r *rand.Rand) { w.two(r.Uint64(), min(oneOf(r, 0, 50, 150), w.mostFail)) }},
	{"declare", 30, (*modelWorld).declareAny},
	{"delete", 5, (*modelWorld).deleteAny},
	{"others", 22, (*modelWorld).othersChange},
	{"during", 12, func(w *modelWorld, r *rand.Rand) {
		rate := min(oneOf(r, 0, 50, 150), w.mostFail)
		w.record("a pass in which something is declared, of 1000 calls %d fail", rate)
		w.during = 100
		w.elapse(time.Duration(oneOf(r, 5, 30))*time.Second, r.Uint64(), rate, 20)
		w.during = 0
	}},
}

// stepsOfSeed are the steps of a seed.
func stepsOfSeed(seed uint64) []modelStep {
	r := rand.New(rand.NewPCG(seed, 0))
	total := 0
	for _, s := range modelSteps {
		total += s.weight
	}
	steps := make([]modelStep, 10+r.IntN(30))
	for i := range steps {
		n := r.IntN(total)
		for _, s := range modelSteps {
			if n -= s.weight; n < 0 {
				steps[i] = modelStep{s.what, r.Uint64()}
				break
			}
		}
	}
	return steps
}

func (s modelStep) take(w *modelWorld) {
	for _, one := range modelSteps {
		if one.what == s.what {
			one.do(w, rand.New(rand.NewPCG(s.n, 0)))
		}
	}
}

// modelNames are the resources that a seed may declare.
var modelNames = []Ref{
	{domain.KindVolume, "data"},
	{domain.KindVolume, "log"},
	{domain.KindImage, "golden"},
	{domain.KindSecret, "password"},
	{domain.KindConfigmap, "files"},
	{domain.KindMachine, "db"},
	{domain.KindMachine, "db"},
	{domain.KindDeployment, "web"},
	{domain.KindDeployment, "web"},
	{domain.KindBalancer, "front"},
}

func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// declareAny declares a resource, changes it, or declares it as it is.
func (w *modelWorld) declareAny(r *rand.Rand) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	ref := oneOf(r, modelNames...)
	in := domain.Managed{Kind: ref.Kind, Name: ref.Name, Repair: oneOf(r, domain.RepairAuto, domain.RepairManual)}
	before := w.store.find(ref.Kind, ref.Name)
	if before != nil && before.Request == domain.ManagedDelete {
		return
	}
	var spec any
	switch ref.Kind {
	case domain.KindVolume:
		one := domain.VolumeSpec{SizeGB: 1 + r.IntN(3), Description: oneOf(r, "", "a", "b")}
		one.Metadata = map[string]string{oneOf(r, "a", "b"): oneOf(r, "1", "2")}
		if before != nil {
			one.SizeGB = max(one.SizeGB, read[domain.VolumeSpec](before.Spec).SizeGB)
		}
		spec = one
	case domain.KindImage:
		spec = domain.ImageSpec{
			DiskFormat: "raw", MinDiskGB: r.IntN(2), Tags: oneOf(r, nil, []string{"a"}, []string{"b"}),
			Content: base64.StdEncoding.EncodeToString([]byte(oneOf(r, "one", "two"))),
		}
	case domain.KindSecret:
		spec = domain.SecretSpec{}
		in.Secrets, _ = json.Marshal(domain.ManagedSecrets{Payload: oneOf(r, "one", "two")})
		digest := sha256.Sum256(in.Secrets)
		in.Digest = digest[:]
	case domain.KindConfigmap:
		spec = domain.ConfigmapSpec{Data: map[string]string{"a": oneOf(r, "1", "2")}}
	case domain.KindMachine:
		one := anyMachine(r)
		one.Volumes = oneOf(r, nil, []string{"data"}, []string{"data", "log"})
		spec = one
	case domain.KindBalancer:
		one := domain.BalancerSpec{Network: "private", Listeners: []domain.ListenerSpec{{
			Protocol: "TCP", Port: 80 + r.IntN(2), MemberPort: modelPort, Deployment: "web",
			Algorithm: oneOf(r, "", "LEAST_CONNECTIONS"),
		}}}
		if r.IntN(2) == 0 {
			one.Listeners = append(one.Listeners, domain.ListenerSpec{
				Protocol: "TCP", Port: 443, MemberPort: modelPort, Addresses: []string{"10.0.1.1"}, Machines: oneOf(r, nil,
					[]string{"db"}),
			})
		}
		spec = one
	case domain.KindDeployment:
		one := domain.DeploymentSpec{MachineSpec: anyMachine(r), Count: r.IntN(4)}
		one.MaxUnavailable = oneOf(r, nil, new(0), new(1), new(2))
		in.Schedule.Affinity = oneOf(r, "", "", "spread")
		spec = one
	}
	in.Spec, _ = json.Marshal(spec)
	if before != nil && r.IntN(4) == 0 { // the same again
		in.Spec, in.Digest, in.Secrets, in.Schedule = before.Spec, before.Digest, before.Secrets, before.Schedule
		in.Repair = before.Repair
	}
	if before != nil && ref.Kind == domain.KindDeployment && r.IntN(3) == 0 { // scale
		one := read[domain.DeploymentSpec](before.Spec)
		one.Count = r.IntN(4)
		in.Spec, _ = json.Marshal(one)
		in.Schedule, in.Repair = before.Schedule, before.Repair
	}
	w.record("%s is declared, repair %s, %+v: %s", ref, in.Repair, in.Schedule, in.Spec)
	w.store.declare(in)
}

func anyMachine(r *rand.Rand) domain.MachineSpec {
	return domain.MachineSpec{
		Flavor: oneOf(r, "tiny", "small"), Image: oneOf(r, "cirros", "cirros", "ubuntu"), Networks: []string{"private"},
		Tags: oneOf(r, nil, []string{"a"}, []string{"b"}), Update: oneOf(r, "", domain.UpdateReplace),
		Metadata:   map[string]string{"a": oneOf(r, "1", "2")},
		Configmaps: oneOf(r, nil, nil, []string{"files"}),
	}
}

// deleteAny deletes a resource, in one of four cases without its objects.
func (w *modelWorld) deleteAny(r *rand.Rand) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if len(w.store.resources) == 0 {
		return
	}
	m, orphan := oneOf(r, w.store.resources...), r.IntN(4) == 0
	if m.Request == domain.ManagedDelete {
		return
	}
	w.record("%s %s is deleted, orphan: %t", m.Kind, m.Name, orphan)
	w.store.delete(m, orphan)
}

// lives lives a seed: its steps, then time without failures, in which all becomes as declared.
func (w *modelWorld) lives(steps []modelStep) (faults []string) {
	for _, s := range steps {
		s.take(w)
	}
	for _, isAfter := range []bool{false, true} {
		w.record("nothing fails any more")
		for n := 0; n < 16 && (n == 0 || w.hasUnexcused(isAfter)); n++ {
			w.elapse(11*time.Minute, 0, 0, 60) // all is scanned every ten minutes
		}
		for _, p := range w.problems() {
			rule := w.excuse(p, isAfter)
			if rule == "" {
				faults = append(faults, p.text)
			}
			w.record("%s: %s", p.text, rule)
		}
		if len(faults) > 0 || isAfter {
			break
		}
		w.record("all is declared again")
		w.store.mu.Lock()
		for _, m := range w.store.resources {
			if m.Request != domain.ManagedDelete {
				w.store.declare(*m)
			}
		}
		w.store.mu.Unlock()
	}
	return append(faults, w.cloud.faults...)
}

// hasUnexcused reports whether something is not as declared, and no rule permits that.
func (w *modelWorld) hasUnexcused(isAfter bool) bool {
	return slices.ContainsFunc(w.problems(), func(p modelProblem) bool { return w.excuse(p, isAfter) == "" })
}

// run lives steps in time of its own.
func run(t *testing.T, steps []modelStep, mostFail int) (faults, history []string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		w := newModelWorld()
		w.mostFail = mostFail
		faults = w.lives(steps)
		if len(faults) > 0 {
			for _, m := range w.store.resources {
				w.record("%s %s is %s: %s; request %q, revision %d of %d, drift %v, %+v", m.Kind, m.Name, m.Status,
					m.Reason, m.Request, m.ObservedRevision, m.Revision, m.Drift, m.Conditions)
			}
			for _, member := range w.store.members {
				w.record("member %+v", member)
			}
		}
		history = w.history
	})
	return faults, history
}

// shorten leaves out steps of a seed without which it fails as well.
func shorten(t *testing.T, steps []modelStep, mostFail int) []modelStep {
	t.Helper()
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(steps); {
			fewer := slices.Delete(slices.Clone(steps), at, at+size)
			if faults, _ := run(t, fewer, mostFail); len(faults) > 0 {
				steps = fewer
			} else {
				at += size
			}
		}
	}
	return steps
}

// checkSeed lives a seed, and prints the shortest history that fails.
func checkSeed(t *testing.T, seed uint64, mostFail int) (holds bool) {
	t.Helper()
	steps := stepsOfSeed(seed)
	faults, history := run(t, steps, mostFail)
	if len(faults) == 0 {
		return true
	}
	if fewer := shorten(t, steps, mostFail); len(fewer) < len(steps) {
		if again, shorter := run(t, fewer, mostFail); len(again) > 0 {
			faults, history = again, shorter
		}
	}
	t.Errorf("seed %d:\n%s\nhistory:\n%s", seed, strings.Join(faults, "\n"), strings.Join(history, "\n"))
	return false
}

// withoutLogs keeps the failures that are meant to happen out of the log.
func withoutLogs(t *testing.T) {
	t.Helper()
	if os.Getenv("MODEL_LOG") != "" {
		return
	}
	logs := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { slog.SetDefault(logs) })
}

// TestModel: whatever is declared, between passes and during them, whatever others do to the objects, and whatever
// calls fail: in the end all is as declared, or a rule says why not; no object with data is deleted without a rule;
// what others have made is left alone; nothing is left over. Up to 5 % of the calls fail.
func TestModel(t *testing.T) {
	t.Parallel()
	withoutLogs(t)
	began, failed := time.Now(), 0
	for seed := uint64(0); seed < modelSeeds && failed < mostFailed && time.Since(began) < modelShort; seed++ {
		if !checkSeed(t, seed, modelFail) {
			failed++
		}
	}
}

// TestLongSeedReproduces: what a seed lives follows from the seed, so that one that has failed can be lived again. Of
// calls that begin at the same nanosecond either may be the first one, so a few seeds may differ.
func TestLongSeedReproduces(t *testing.T) {
	t.Parallel()
	withoutLogs(t)
	var other []uint64
	for seed := range uint64(modelTwice) {
		_, history := run(t, stepsOfSeed(seed), modelFail)
		if _, again := run(t, stepsOfSeed(seed), modelFail); !slices.Equal(history, again) {
			other = append(other, seed)
		}
	}
	if len(other) > modelTwice/4 {
		t.Errorf("of %d seeds these do not reproduce: %v", modelTwice, other)
	}
}

const (
	modelTwice = 100             // seeds that are lived twice
	modelSeeds = 200             // that TestModel lives
	mostFailed = 3               // seeds, whose histories are printed
	modelFail  = 50              // of a thousand calls at most
	modelShort = 8 * time.Second // for which it does at most, under the race detector
)
