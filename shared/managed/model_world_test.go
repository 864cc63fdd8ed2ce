package managed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// modelWorld is a project with a database and a cloud, and the processes that work for it one after the other.
type modelWorld struct {
	cloud     *modelCloud
	store     *modelStore
	balancers *BalancerDriver // of the process
	began     time.Time
	passes    int
	runs      int                 // processes
	isDown    bool                // a cell of Nova
	mostFail  int                 // of a thousand calls
	during    int                 // before so many of a thousand calls something is declared
	doomed    map[uuid.UUID]bool  // members whose deletion was stored by a rule
	forced    map[string][]string // faults that are given, by the call

	mu      sync.Mutex
	history []string
	idle    string // the last pass, in which nothing has happened yet
}

func newModelWorld() *modelWorld {
	w := &modelWorld{
		store: newModelStore(), balancers: NewBalancerDriver(), began: time.Now(),
		doomed: map[uuid.UUID]bool{},
	}
	w.cloud = &modelCloud{groups: map[string]bool{}, permit: w.permit, record: w.record}
	w.store.dooms = w.dooms
	return w
}

const passBegins = "  pass %d"

// record adds a line to the history. Rounds in which nothing happens are left out.
func (w *modelWorld) record(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Sprintf("%9s ", time.Since(w.began).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	if format == passBegins {
		w.idle = line
		return
	}
	if w.idle != "" {
		w.history, w.idle = append(w.history, w.idle), ""
	}
	w.history = append(w.history, line)
}

// modelSessions opens the cloud for one process.
type modelSessions struct{ view modelView }

func (s modelSessions) Open(context.Context, domain.Connection, string) (Session, error) {
	return Session{Cloud: s.view, ProjectID: "p", DomainID: "d", UserID: "u"}, nil
}
func (modelSessions) Lose(context.Context, domain.Connection) {}
func (modelSessions) Forget(uuid.UUID)                        {}

type noNodes struct{}

func (noNodes) All(context.Context) ([]domain.Node, error) { return nil, nil }

// engine is the engine of one process.
func (w *modelWorld) engine(run *modelRun) Engine {
	store := storeView{w.store, run}
	instances := modelInstances{store}
	machines := &MachineDriver{
		Orders: w.orders(store), Actions: actions.Engine{Instances: instances}, Instances: instances,
	}
	return Engine{
		Store: store, Sessions: modelSessions{modelView{c: w.cloud, run: run}}, Nodes: noNodes{},
		Wake: func(...string) {},
		Unseal: func(m domain.Managed) (out domain.ManagedSecrets, err error) {
			return out, json.Unmarshal(m.Secrets, &out)
		},
		Drivers: map[domain.Kind]Driver{
			domain.KindMachine: machines, domain.KindDeployment: machines, domain.KindVolume: VolumeDriver{},
			domain.KindImage: ImageDriver{}, domain.KindSecret: SecretDriver{}, domain.KindConfigmap: ConfigmapDriver{},
			domain.KindBalancer: w.balancers,
		},
		newID: func() uuid.UUID { return uuid.MustParse(run.newID("member")) },
	}
}

func (w *modelWorld) orders(store storeView) orders.Engine {
	return orders.Engine{
		Orders: store, Instances: modelInstances{store}, Wake: func() {}, Fence: 45 * time.Second,
	}
}

// pass does one pass in a process of its own. So many of a thousand calls fail.
func (w *modelWorld) pass(seed uint64, rate int) {
	w.passes++
	run, ctx := w.newRun(seed, rate)
	defer run.cancel()
	claim, project := w.store.take()
	w.record(passBegins, w.passes)
	err := w.engine(run).Run(ctx, claim, project)
	switch {
	case run.dead():
		w.record("    the process is dead")
		w.balancers = NewBalancerDriver()
		time.Sleep(claimFor - time.Duration(seed%6)*time.Second) // its claim was renewed a while ago
	case err != nil && !errors.Is(err, domain.ErrFenced):
		w.record("    the pass ends with: %v", err)
	}
}

// newRun is a process that has just started.
func (w *modelWorld) newRun(seed uint64, rate int) (*modelRun, context.Context) {
	ctx, cancel := context.WithCancel(context.Background())
	w.runs++
	return &modelRun{
		seed: seed, number: w.runs, rate: rate, during: w.during, record: w.record, cancel: cancel,
		declare: w.declareDuring, forced: w.forcedFault, isDown: w.isDown,
		counts: map[string]uint64{}, loaded: map[uuid.UUID]domain.Managed{},
	}, ctx
}

// declareDuring has something declared while a pass runs.
func (w *modelWorld) declareDuring(seed uint64) {
	if seed%4 == 0 {
		w.deleteAny(rand.New(rand.NewPCG(seed, 1)))
		return
	}
	w.declareAny(rand.New(rand.NewPCG(seed, 1)))
}

// two does a pass in each of two processes: the second one takes the claim of the first one, which is slow.
func (w *modelWorld) two(seed uint64, rate int) {
	slow, ctx := w.newRun(seed, rate)
	slow.slow = time.Duration(seed%7) * 500 * time.Millisecond
	claim, project := w.store.take()
	w.record("  a slow pass")
	engine := w.engine(slow)
	var other sync.WaitGroup
	other.Go(func() { _ = engine.Run(ctx, claim, project) })
	time.Sleep(time.Duration(seed/7%50) * 200 * time.Millisecond)
	noticed := time.AfterFunc(time.Duration(seed%5)*time.Second, slow.cancel)
	w.pass(seed+1, rate)
	other.Wait()
	noticed.Stop()
	slow.cancel()
}

// poll does what poll-instances does: it observes the servers, and the orders that are running.
func (w *modelWorld) poll() {
	run, ctx := w.newRun(0, 0)
	run.isPoll, run.during = true, 0
	store, view := storeView{w.store, run}, modelView{c: w.cloud, run: run}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer func() { cancel(); run.cancel() }()
	for _, id := range slices.SortedFunc(maps.Keys(w.store.orders), compareIDs) {
		o := w.store.orders[id]
		i := o.Instances[0]
		if i.State == domain.InstanceDeleted || i.State == domain.InstanceError && i.ServerID == "" {
			continue
		}
		if o.Status == domain.OrderRunning {
			order, _ := store.Get(ctx, "p", id)
			if _, err := w.orders(store).Refresh(ctx, orders.Session{Cloud: view}, order); err != nil {
				w.record("    an order is not observed: %v", err)
			}
			continue
		}
		server, err := view.Server(ctx, i.ServerID)
		if err != nil {
			server = domain.Server{ID: i.ServerID, Status: "DELETED", Partial: true}
		}
		if i.SeenAt = time.Now(); i.Observe(server) {
			_, _ = modelInstances{store}.Change(ctx, []domain.Instance{i})
		}
	}
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// elapse lets time pass, in which the project has its passes.
func (w *modelWorld) elapse(d time.Duration, seed uint64, rate int, most int) {
	end := time.Now().Add(d)
	for n := uint64(0); most > 0; n++ {
		w.poll()
		left := time.Until(end)
		if left <= 0 {
			return
		}
		wait := time.Until(w.store.project.DueAt)
		if wait > 0 {
			time.Sleep(min(wait, left, 30*time.Second))
			continue
		}
		w.pass(seed+n*1_000_003, rate)
		most--
	}
}

// modelTime is how long TestLongModel lives seeds.
const modelTime = 10 * time.Minute

// TestLongModel is TestModel for ten minutes, or for MODEL_TIME, each time with other seeds. MODEL_SEED lives that
// one, of 1000 calls at most MODEL_FAIL fail, and MODEL_LOG shows the log.
func TestLongModel(t *testing.T) {
	t.Parallel()
	withoutLogs(t)
	mostFail, err := strconv.Atoi(os.Getenv("MODEL_FAIL"))
	if err != nil {
		mostFail = modelFail
	}
	if seed, err := strconv.ParseUint(os.Getenv("MODEL_SEED"), 10, 64); err == nil {
		checkSeed(t, seed, mostFail)
		return
	}
	limit, err := time.ParseDuration(os.Getenv("MODEL_TIME"))
	if err != nil {
		limit = modelTime
	}
	began, first, failed := time.Now(), rand.Uint64N(1<<32), 0
	seed := first
	for ; time.Since(began) < limit && failed < mostFailed; seed++ {
		if !checkSeed(t, seed, mostFail) {
			failed++
		}
	}
	t.Logf("the seeds from %d to %d were lived", first, seed-1)
}

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
			o.server.Fault = &domain.Fault{Code: 500, Message: "the host is unavailable"}
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
