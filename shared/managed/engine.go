package managed

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Store is the part of the database that managed resources need.
type Store interface {
	Load(ctx context.Context, projectID string) ([]domain.Managed, error)
	// Connections reads the connection of each of the project's resources, by the resource's id.
	Connections(ctx context.Context, projectID string) (map[uuid.UUID]*domain.Connection, error)
	ReleaseProject(
		ctx context.Context, claim domain.Claim, project domain.ManagedProject, dueIn time.Duration,
	) error
	// HoldsProject is domain.ErrFenced when another replica has claimed the project since.
	HoldsProject(ctx context.Context, claim domain.Claim, projectID string) error
	SaveMember(ctx context.Context, claim domain.Claim, projectID string, m domain.Member) error
	DeleteMember(ctx context.Context, claim domain.Claim, projectID string, id uuid.UUID) error
	SaveStatus(ctx context.Context, claim domain.Claim, all ...*domain.Managed) error
	Remove(ctx context.Context, claim domain.Claim, m domain.Managed) error
	// SaveUnexpected records objects without a member, and returns the ids of those that an event has reported.
	SaveUnexpected(
		ctx context.Context, claim domain.Claim, projectID string, found []domain.UnexpectedObject,
		after time.Duration,
	) (reported []string, err error)
	// ForgetUnexpected forgets those that none of the listings has shown for long.
	ForgetUnexpected(
		ctx context.Context, claim domain.Claim, projectID string, listed []domain.UnexpectedObject, found []string,
		after time.Duration,
	) error
	Now(context.Context) (time.Time, error)
}

// Sessions opens what was delegated.
type Sessions interface {
	// Open opens a session of a connection in a region; "" is the function's own. An error with the code
	// DelegationLost says that Keystone does not accept the trust any more.
	Open(ctx context.Context, c domain.Connection, region string) (Session, error)
	// Lose records that, so that the next declaration makes another trust.
	Lose(ctx context.Context, c domain.Connection)
	// Forget drops the sessions of a connection after an error that is due to their token.
	Forget(connection uuid.UUID)
}

// Nodes reads the nodes, for the labels of schedule rules.
type Nodes interface {
	All(context.Context) ([]domain.Node, error)
}

// Engine makes managed resources what is declared.
type Engine struct {
	Store    Store
	Sessions Sessions
	Drivers  map[domain.Kind]Driver
	Nodes    Nodes
	// Unseal decrypts the secrets of a resource.
	Unseal func(m domain.Managed) (domain.ManagedSecrets, error)
	Wake   func(functions ...string)

	newID func() uuid.UUID // of members; nil = random ones
}

// The pauses until a project is worked on again.
const (
	movingPause = time.Second      // while OpenStack is at work for it, or as long as a round lists, if that is longer
	driftPause  = time.Minute      // while a resource waits, or has objects whose changes are not reported
	scanPause   = 10 * time.Minute // until all is looked at, for changes that Nova does not report, such as of metadata
	atOnce      = 4                // steps of a project in one service and region
	stepTime    = 45 * time.Second // of one step
	// passTime bounds a round. With the time of an event's waits (due.FollowFor) it is less than EVENT_TIMEOUT.
	passTime = 4*time.Minute - 5*time.Second
)

// round is one visit of a claimed project.
type round struct {
	Engine

	claim     domain.Claim
	project   domain.ManagedProject
	now       time.Time // at its begin, by the database's clock
	began     time.Time // the same by the clock of this process
	resources []*resource
	sessions  map[sessionKey]opened
	known     map[uuid.UUID]*domain.Connection // by the resource
	isReread  bool                             // they were read again
	users     map[Ref]Ref                      // what each resource is named by; nil = not looked up
	nodes     []domain.Node
	deleted   map[uuid.UUID]bool               // the members whose objects are not found by their ids
	missed    map[uuid.UUID]bool               // the members whose objects are not found, and not for long enough
	stored    map[uuid.UUID]stored             // what was read by the ids of members that no list shows
	marked    map[listing]map[uuid.UUID]Object // all objects with marks, of those that a scan has listed
	listed    time.Duration                    // the time that listing has taken
	isNews    bool                             // a status is new, which other resources may wait for
	around    Around
	problem   error // why a part of the project could not be looked at
}

// resource is a resource in a round.
type resource struct {
	domain.Managed

	driver    Driver
	session   Session
	noLogin   error  // why there is no session
	notListed error  // why its objects could not be listed
	waits     string // what it has to wait for
	members   []seen
	surplus   []domain.Drift // objects that are named like its own, have a mark and are no members

	isLookedAt bool // in this round; others are only looked up by those that name them
	plan       plan

	mu       sync.Mutex
	failures []string // of its steps
	waiting  []string
}

// Run does for a claimed project what it needs now: it loads what is declared, lists what is real, takes the steps
// between them, stores how far it has come, and releases the claim.
func (e Engine) Run(ctx context.Context, claim domain.Claim, project domain.ManagedProject) error {
	r := &round{
		Engine: e, claim: claim, project: project, sessions: map[sessionKey]opened{}, deleted: map[uuid.UUID]bool{},
		missed: map[uuid.UUID]bool{}, stored: map[uuid.UUID]stored{}, marked: map[listing]map[uuid.UUID]Object{},
	}
	return due.Pass{Limit: passTime, Work: r.run, Save: r.release}.Run(ctx)
}

// release releases the claim, with why the round has failed and the time at which there is work again.
func (r *round) release(ctx context.Context, failure error) error {
	if failure != nil {
		r.problem = failure
	}
	soon, dueIn := min(max(movingPause, r.listed), driftPause), scanPause
	if !r.isScan() {
		dueIn = min(dueIn, max(r.project.ScanAt.Sub(r.time()), soon))
	}
	for _, m := range r.resources {
		if m.plan.isMoving || r.isNews {
			dueIn = soon
		}
		isListed := m.noLogin == nil && m.notListed == nil // what is not waits for longer with each attempt
		if m.isLookedAt && !m.NextAt.IsZero() || !m.isReported() && isListed {
			dueIn = min(dueIn, driftPause)
		}
		for _, at := range []time.Time{m.plan.retryAt, m.NextAt} {
			if at.After(r.now) {
				dueIn = min(dueIn, max(at.Sub(r.time()), soon))
			}
		}
	}
	r.project.Problem = nil
	if r.problem == nil {
		r.project.Attempts = 0
		if r.isScan() {
			r.project.NextScanAt = r.now.Add(scanPause)
		}
	} else {
		slog.WarnContext(ctx, "reconcile of project failed", "project_id", r.project.ProjectID, "error", r.problem)
		r.project.Attempts++
		r.project.Problem = domain.ProblemOf(r.problem)
		dueIn = min(dueIn, pauseAfter(r.project.Attempts)) // what others of the project do goes on
	}
	return r.Store.ReleaseProject(ctx, r.claim, r.project, dueIn)
}

// time is the time by the database's clock.
func (r *round) time() time.Time { return r.now.Add(time.Since(r.began)) }

func (r *round) run(ctx context.Context) (err error) {
	r.began = time.Now()
	if r.now, err = r.Store.Now(ctx); err != nil {
		return err
	}
	if err := r.load(ctx); err != nil {
		return err
	}
	if err := r.observe(ctx); err != nil {
		return err
	}
	for _, m := range r.resources {
		r.decide(m)
	}
	if err := r.step(ctx); err != nil {
		return err
	}
	return r.save(ctx)
}

// choose marks the resources that are looked at: those that are due, those whose changes are not reported, and those
// that name a resource which is not settled. Every ten minutes all are.
func (r *round) choose() {
	isUnsettled := map[Ref]bool{}
	for _, m := range r.resources {
		isUnsettled[Ref{m.Kind, m.Name}] = !m.NextAt.IsZero()
		m.isLookedAt = r.isScan() || !m.isReported() || !m.NextAt.IsZero() && !m.NextAt.After(r.now)
	}
	for _, m := range r.resources {
		m.isLookedAt = m.isLookedAt || slices.ContainsFunc(m.needs(), func(ref Ref) bool { return isUnsettled[ref] })
	}
}

func (r *round) isScan() bool { return !r.project.ScanAt.After(r.now) }

// isReported reports whether something makes the resource due when others change it: poll-instances follows the servers
// of the function's own region. The node of a server, and its labels, are reported by nothing.
func (m *resource) isReported() bool {
	switch m.Kind {
	case domain.KindMachine, domain.KindDeployment:
		return m.Schedule.Region == "" && len(m.Schedule.Labels) == 0
	case domain.KindConfigmap:
		return true
	}
	return false
}

// load reads the project's resources, in the order in which they can be made.
func (r *round) load(ctx context.Context) error {
	all, err := r.Store.Load(ctx, r.project.ProjectID)
	if err != nil {
		return err
	}
	if r.known, err = r.Store.Connections(ctx, r.project.ProjectID); err != nil {
		return err
	}
	needsNodes := false
	for _, kind := range domain.Kinds() {
		for _, m := range all {
			if m.Kind == kind {
				r.resources = append(r.resources, &resource{Managed: m, driver: r.Drivers[kind]})
				needsNodes = needsNodes || len(m.Schedule.Labels) > 0 || m.Schedule.Affinity == "spread"
			}
		}
	}
	r.choose()
	if needsNodes {
		r.nodes, err = r.Nodes.All(ctx)
	}
	return err
}

// decide plans the steps of a resource.
func (r *round) decide(m *resource) {
	if !m.isLookedAt {
		return
	}
	m.waits = r.waitsFor(m)
	if m.isOrphaned() {
		m.plan.isGone = m.waits == ""
		return
	}
	if m.noLogin != nil || m.notListed != nil {
		return
	}
	t := m.target()
	t.newID = r.newID
	m.plan = decide(t, m.members, r.now)
	if !m.isDeleting() {
		m.plan.drift = append(m.plan.drift, m.surplus...)
	}
	if m.waits != "" {
		// What it waits for makes the project due, by a declaration or when it becomes ready.
		m.plan.steps, m.plan.isGone = m.stepsMeanwhile(), false
		m.plan.isMoving = len(m.plan.steps) > 0 || m.plan.isFollowing && m.plan.retryAt.IsZero()
	}
	m.recordWorking()
}

// recordWorking stores for each member whether its object works, unless another step does: it may have data then.
func (m *resource) recordWorking() {
	for _, s := range m.members {
		if s.isUnrecorded && !slices.ContainsFunc(m.plan.steps, func(other step) bool {
			return other.member.ID == s.member.ID
		}) {
			m.plan.steps = append(m.plan.steps, step{action: actRecord, member: s.member, object: s.object})
		}
	}
}

// stepsMeanwhile are the steps that a resource may take although it has to wait for others: none that makes or deletes
// an object.
func (m *resource) stepsMeanwhile() []step {
	var all []step
	for _, s := range m.plan.steps {
		if s.action == actRecord || s.action == actForget {
			all = append(all, s)
		}
	}
	return all
}

// target is what is declared of the resource.
func (m *resource) target() target {
	t := target{
		managedID: m.ID, count: 1, maxUnavailable: 1, surges: true, revision: m.Revision, declarations: m.Declarations,
		repairs: m.Repair == domain.RepairAuto,
		isNew:   m.Request != "",
	}
	if !isServers(m.Kind) {
		t.mostCreations = mostCreations
	}
	if m.Kind == domain.KindMachine && m.ObservedRevision > 0 && m.ObservedRevision != m.Revision {
		t.replaces = t.count
	}
	if m.Kind == domain.KindMachine && len(read[domain.MachineSpec](m.Spec).Volumes) > 0 {
		t.surges = false // its volumes are the old server's until that is deleted
	}
	if m.Kind == domain.KindDeployment {
		spec := read[domain.DeploymentSpec](m.Spec)
		t.isDeployment, t.count, t.surges = true, spec.Count, false
		t.oneByOne = m.Schedule.Affinity != ""
		t.replaces = read[domain.DeploymentSpec](m.Made[m.ObservedRevision].Spec).Count
		if spec.MaxUnavailable != nil {
			t.maxUnavailable = *spec.MaxUnavailable
			t.surges = t.maxUnavailable == 0
		}
	}
	if m.isDeleting() {
		t.count = 0
	}
	return t
}

func (m *resource) isDeleting() bool { return m.Request == domain.ManagedDelete }

// isOrphaned reports whether only the declaration is deleted, for which OpenStack is not needed.
func (m *resource) isOrphaned() bool { return m.isDeleting() && m.Orphan }

// wanted is what the object of a member should be.
func (r *round) wanted(m *resource, member domain.Member) Wanted {
	w := Wanted{
		Resource: m.Managed, Member: member, Name: m.NameOf(member), Spec: m.Spec, Around: r.around,
	}
	w.Made = domain.Revision{
		Number: m.Revision, Spec: m.Spec, Secrets: m.Secrets, Digest: m.Digest, Labels: m.Labels, Schedule: m.Schedule,
	}
	if member.Revision != m.Revision {
		w.Made = m.Made[member.Revision]
	}
	for number, r := range m.Made {
		if number > member.Revision {
			w.Since = append(w.Since, r)
		}
	}
	if len(m.Schedule.Labels) > 0 {
		w.Zones = zonesOf(r.nodes, m.Schedule.Labels)
	}
	return w
}

// needs lists the resources that the spec of a resource names.
func (m *resource) needs() []Ref {
	if m.driver == nil || !json.Valid(m.Spec) {
		return nil
	}
	return m.driver.Needs(m.Spec)
}

type sessionKey struct {
	connection uuid.UUID
	trust      string // a connection can get another one
	region     string
}

// opened is a session, or why it could not be opened.
type opened struct {
	session Session
	err     error
}

// openAll opens the session of each resource, and records the connections that Keystone does not accept any more. A
// Keystone that hangs keeps a round for no longer than a list, and not those whose sessions are open.
func (r *round) openAll(ctx context.Context) (err error) {
	opening, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	lost := map[uuid.UUID]*domain.Connection{}
	for _, m := range r.resources {
		if m.session, m.noLogin, err = r.open(ctx, opening, m); err != nil {
			return err
		}
		c := r.known[m.ID]
		if apperr.CodeOf(m.noLogin) == apperr.DelegationLost && c != nil && c.Status.IsOpen() {
			lost[c.ID] = c
		}
	}
	for _, c := range lost {
		r.Sessions.Lose(ctx, *c)
	}
	return nil
}

// open opens the session of a resource's connection. Before a delegation counts as lost, it reads the connections
// again: a declaration renews them at any time, and the old trust is revoked then.
func (r *round) open(ctx, opening context.Context, m *resource) (s Session, noLogin, err error) {
	s, noLogin = r.openOnce(opening, m)
	if apperr.CodeOf(noLogin) != apperr.DelegationLost || r.isReread {
		return s, noLogin, nil
	}
	if r.known, err = r.Store.Connections(ctx, r.project.ProjectID); err != nil {
		return s, nil, err
	}
	r.isReread = true
	s, noLogin = r.openOnce(opening, m)
	return s, noLogin, nil
}

// openOnce opens a trust in a region once in a round.
func (r *round) openOnce(ctx context.Context, m *resource) (Session, error) {
	c := r.known[m.ID]
	switch {
	case c == nil:
		return Session{}, apperr.New(apperr.DelegationLost, "nothing is delegated for the resource: declare it again")
	case !c.Status.IsOpen():
		return Session{}, apperr.New(apperr.DelegationLost, "what was delegated has ended: %s", c.Reason)
	}
	m.ConnectionID = c.ID
	key := sessionKey{c.ID, c.DelegationID, m.Schedule.Region}
	o, ok := r.sessions[key]
	if !ok {
		o.session, o.err = r.Sessions.Open(ctx, *c, m.Schedule.Region)
		if o.err != nil && ctx.Err() != nil {
			o.err = apperr.Wrap(apperr.Timeout, o.err, "keystone did not answer within %s", listTime)
		}
		o.session.lists = &lists{}
		r.sessions[key] = o
	}
	if o.err != nil && apperr.CodeOf(o.err) != apperr.DelegationLost {
		r.problem = o.err
	}
	return o.session, o.err
}

// explain drops the session of a resource after an error that its token may be the reason for, and says with which
// roles a call was forbidden.
func (r *round) explain(m *resource, err error) error {
	code := apperr.CodeOf(err)
	if code == apperr.Unauthenticated || code == apperr.Forbidden {
		r.Sessions.Forget(m.ConnectionID)
	}
	if c := r.known[m.ID]; code == apperr.Forbidden && c != nil {
		err = apperr.Wrap(code, err, "%s: the trust of the resource has only the roles %s",
			strings.TrimSuffix(apperr.As(err).Message, "."), strings.Join(c.ActsAs.Roles, ", "))
	}
	return err
}
