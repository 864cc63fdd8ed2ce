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
	// DelegationLost reports whether Keystone does not accept the trust any more.
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
	movingPause   = time.Second      // while OpenStack is at work for it, or as long as a pass lists, if that is longer
	driftPause    = time.Minute      // while a resource waits, or has objects whose changes are not reported
	scanPause     = 10 * time.Minute // until all is scanned, for changes that Nova does not report, such as of metadata
	parallelSteps = 4                // steps of a project in one service and region
	stepTime      = 45 * time.Second // of one step
	// passTime bounds a pass. With the time of an event's waits (due.FollowFor) it is less than EVENT_TIMEOUT.
	passTime = 4*time.Minute - 5*time.Second
)

// pass is one visit of a claimed project.
type pass struct {
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
	inventory Inventory
	problem   error // why a part of the project is not known
}

// resource is a resource in a pass.
type resource struct {
	domain.Managed

	driver     Driver
	session    Session
	unknown    error  // why its objects are not known: there is no session, or no list; nil = they are
	waits      string // what it has to wait for
	members    []observed
	unexpected []domain.Drift // objects that are named like its own, have a mark and are no members

	isSelected bool // in this pass; others are only looked up by those that name them
	plan       plan

	mu       sync.Mutex
	failures []string // of its steps
	waiting  []string
}

// Run does for a claimed project what it needs now: it loads what is declared, lists what is real, takes the steps
// between them, stores how far it has come, and releases the claim.
func (e Engine) Run(ctx context.Context, claim domain.Claim, project domain.ManagedProject) error {
	p := &pass{
		Engine: e, claim: claim, project: project, sessions: map[sessionKey]opened{}, deleted: map[uuid.UUID]bool{},
		missed: map[uuid.UUID]bool{}, stored: map[uuid.UUID]stored{}, marked: map[listing]map[uuid.UUID]Object{},
	}
	return due.Pass{Limit: passTime, Work: p.run, Save: p.release}.Run(ctx)
}

// release releases the claim, with why the pass has failed and the time at which there is work again.
func (p *pass) release(ctx context.Context, failure error) error {
	if failure != nil {
		p.problem = failure
	}
	soon, dueIn := min(max(movingPause, p.listed), driftPause), scanPause
	if !p.isScan() {
		dueIn = min(dueIn, max(p.project.ScanAt.Sub(p.time()), soon))
	}
	for _, m := range p.resources {
		if m.plan.isMoving || p.isNews {
			dueIn = soon
		}
		isListed := m.unknown == nil // what is not waits for longer with each attempt
		if m.isSelected && !m.NextAt.IsZero() || !m.isReported() && isListed {
			dueIn = min(dueIn, driftPause)
		}
		for _, at := range []time.Time{m.plan.retryAt, m.NextAt} {
			if at.After(p.now) {
				dueIn = min(dueIn, max(at.Sub(p.time()), soon))
			}
		}
	}
	p.project.Problem = nil
	if p.problem == nil {
		p.project.Attempts = 0
		if p.isScan() {
			p.project.NextScanAt = p.now.Add(scanPause)
		}
	} else {
		slog.WarnContext(ctx, "reconcile of project failed", "project_id", p.project.ProjectID, "error", p.problem)
		p.project.Attempts++
		p.project.Problem = domain.ProblemOf(p.problem)
		dueIn = min(dueIn, pauseAfter(p.project.Attempts)) // what others of the project do goes on
	}
	return p.Store.ReleaseProject(ctx, p.claim, p.project, dueIn)
}

// time is the time by the database's clock.
func (p *pass) time() time.Time { return p.now.Add(time.Since(p.began)) }

func (p *pass) run(ctx context.Context) (err error) {
	p.began = time.Now()
	if p.now, err = p.Store.Now(ctx); err != nil {
		return err
	}
	if err := p.load(ctx); err != nil {
		return err
	}
	if err := p.observe(ctx); err != nil {
		return err
	}
	for _, m := range p.resources {
		p.decide(m)
	}
	if err := p.step(ctx); err != nil {
		return err
	}
	return p.save(ctx)
}

// selectDue selects the resources of the pass: those that are due, those whose changes are not reported, and those
// that name a resource which is not settled. Every ten minutes all are.
func (p *pass) selectDue() {
	isUnsettled := map[Ref]bool{}
	for _, m := range p.resources {
		isUnsettled[Ref{m.Kind, m.Name}] = !m.NextAt.IsZero()
		m.isSelected = p.isScan() || !m.isReported() || !m.NextAt.IsZero() && !m.NextAt.After(p.now)
	}
	for _, m := range p.resources {
		m.isSelected = m.isSelected || slices.ContainsFunc(m.needs(), func(ref Ref) bool { return isUnsettled[ref] })
	}
}

func (p *pass) isScan() bool { return !p.project.ScanAt.After(p.now) }

// isReported reports whether something makes the resource due when others change it: poll-instances follows the servers
// of the function's own region. The node of a server, and its labels, are reported by nothing.
func (m *resource) isReported() bool {
	if m.Kind.IsServer() {
		return m.Schedule.Region == "" && len(m.Schedule.Labels) == 0
	}
	return m.Kind == domain.KindConfigmap
}

// load reads the project's resources, in the order in which they can be made.
func (p *pass) load(ctx context.Context) error {
	all, err := p.Store.Load(ctx, p.project.ProjectID)
	if err != nil {
		return err
	}
	if p.known, err = p.Store.Connections(ctx, p.project.ProjectID); err != nil {
		return err
	}
	needsNodes := false
	for _, kind := range domain.Kinds() {
		for _, m := range all {
			if m.Kind == kind {
				p.resources = append(p.resources, &resource{Managed: m, driver: p.Drivers[kind]})
				needsNodes = needsNodes || len(m.Schedule.Labels) > 0 || m.Schedule.Affinity == "spread"
			}
		}
	}
	p.selectDue()
	if needsNodes {
		p.nodes, err = p.Nodes.All(ctx)
	}
	return err
}

// decide plans the steps of a resource.
func (p *pass) decide(m *resource) {
	if !m.isSelected {
		return
	}
	m.waits = p.waitsFor(m)
	if m.isOrphaned() {
		m.plan.isGone = m.waits == ""
		return
	}
	if m.unknown != nil {
		return
	}
	t := m.target()
	t.newID = p.newID
	m.plan = decide(t, m.members, p.now)
	if !m.isDeleting() {
		m.plan.drift = append(m.plan.drift, m.unexpected...)
	}
	if m.waits != "" {
		// What it waits for makes the project due, by a declaration or when it becomes ready.
		// Meanwhile no step makes or deletes an object.
		m.plan.steps, m.plan.isGone = slices.DeleteFunc(m.plan.steps, func(s step) bool {
			return s.action != actRecord && s.action != actForget
		}), false
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

// target is what is declared of the resource.
func (m *resource) target() target {
	t := target{
		managedID: m.ID, count: 1, maxUnavailable: 1, surges: true, revision: m.Revision, declarations: m.Declarations,
		repairs: m.Repair == domain.RepairAuto,
		isNew:   m.Request != "",
	}
	if !m.Kind.IsServer() {
		t.mostCreations = mostCreations
	}
	if !m.Kind.IsDeployment() && m.Kind.IsServer() && m.ObservedRevision > 0 && m.ObservedRevision != m.Revision {
		t.replaces = t.count
	}
	if m.Kind.IsServer() && len(read[domain.MachineSpec](m.Spec).Volumes) > 0 {
		t.surges = false // its volumes are the old server's until that is deleted
	}
	if m.Kind.IsDeployment() {
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

// desired is what the object of a member should be.
func (p *pass) desired(m *resource, member domain.Member) Desired {
	w := Desired{
		Resource: m.Managed, Member: member, Name: m.NameOf(member), Spec: m.Spec, Inventory: p.inventory,
	}
	w.Made = domain.Revision{
		Number: m.Revision, Spec: m.Spec, Secrets: m.Secrets, Digest: m.Digest, Labels: m.Labels, Schedule: m.Schedule,
	}
	if member.Revision != m.Revision {
		w.Made = m.Made[member.Revision]
	}
	for number, revision := range m.Made {
		if number > member.Revision {
			w.Since = append(w.Since, revision)
		}
	}
	if len(m.Schedule.Labels) > 0 {
		w.Zones = zonesOf(p.nodes, m.Schedule.Labels)
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
// Keystone that hangs keeps a pass for no longer than a list, and not those whose sessions are open.
func (p *pass) openAll(ctx context.Context) (err error) {
	opening, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	lost := map[uuid.UUID]*domain.Connection{}
	for _, m := range p.resources {
		if m.session, m.unknown, err = p.open(ctx, opening, m); err != nil {
			return err
		}
		c := p.known[m.ID]
		if apperr.CodeOf(m.unknown) == apperr.DelegationLost && c != nil && c.Status.IsOpen() {
			lost[c.ID] = c
		}
	}
	for _, c := range lost {
		p.Sessions.Lose(ctx, *c)
	}
	return nil
}

// open opens the session of a resource's connection. Before a delegation counts as lost, it reads the connections
// again: a declaration renews them at any time, and the old trust is revoked then.
func (p *pass) open(ctx, opening context.Context, m *resource) (s Session, noLogin, err error) {
	s, noLogin = p.openOnce(opening, m)
	if apperr.CodeOf(noLogin) != apperr.DelegationLost || p.isReread {
		return s, noLogin, nil
	}
	if p.known, err = p.Store.Connections(ctx, p.project.ProjectID); err != nil {
		return s, nil, err
	}
	p.isReread = true
	s, noLogin = p.openOnce(opening, m)
	return s, noLogin, nil
}

// openOnce opens a trust in a region once in a pass.
func (p *pass) openOnce(ctx context.Context, m *resource) (Session, error) {
	c := p.known[m.ID]
	switch {
	case c == nil:
		return Session{}, apperr.New(apperr.DelegationLost, "nothing is delegated for the resource: declare it again")
	case !c.Status.IsOpen():
		return Session{}, apperr.New(apperr.DelegationLost, "what was delegated has ended: %s", c.Reason)
	}
	m.ConnectionID = c.ID
	key := sessionKey{c.ID, c.DelegationID, m.Schedule.Region}
	o, ok := p.sessions[key]
	if !ok {
		o.session, o.err = p.Sessions.Open(ctx, *c, m.Schedule.Region)
		if o.err != nil && ctx.Err() != nil {
			o.err = apperr.Wrap(apperr.Timeout, o.err, "keystone did not answer within %s", listTime)
		}
		o.session.lists = &lists{}
		p.sessions[key] = o
	}
	if o.err != nil && apperr.CodeOf(o.err) != apperr.DelegationLost {
		p.problem = o.err
	}
	return o.session, o.err
}

// explain drops the session of a resource after an error that its token may be the reason for, and says with which
// roles a call was forbidden.
func (p *pass) explain(m *resource, err error) error {
	code := apperr.CodeOf(err)
	if code == apperr.Unauthenticated || code == apperr.Forbidden {
		p.Sessions.Forget(m.ConnectionID)
	}
	if c := p.known[m.ID]; code == apperr.Forbidden && c != nil {
		err = apperr.Wrap(code, err, "%s: the trust of the resource has only the roles %s",
			strings.TrimSuffix(apperr.As(err).Message, "."), strings.Join(c.ActsAs.Roles, ", "))
	}
	return err
}
