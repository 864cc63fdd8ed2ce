package managed

import (
	"bytes"
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	engine "github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// declaration is a request to declare a resource.
type declaration struct {
	kind     domain.Kind
	name     string
	in       PutManaged
	expected condition
	dryRun   bool
	orphans  bool // of a deletion: its objects stay
}

// attempts are what the attempts of one request share: it counts once, and its secret's digest is computed once.
type attempts struct {
	isCounted bool
	digest    []byte
	of        uuid.UUID // the resource whose digest it is
}

// outcome is what became of a declaration.
type outcome struct {
	domain.Managed

	created bool
	plan    *plan // of a dry run
}

// Put stores a declaration, with a delegation by which reconcile-managed acts in the caller's name. A dry run only says
// what would be done, and what is named that does not exist: that may be declared later.
func (s service) Put(
	ctx context.Context, who domain.Identity, token domain.Secret, d declaration,
) (outcome, error) {
	if err := s.trusts.Check(who, delegation.ForManaged(d.kind, time.Time{})); err != nil {
		return outcome{}, err
	}
	cloud := s.cloud.As(token, who.ProjectID)
	if err := s.checkAvailable(ctx, cloud, d); err != nil {
		return outcome{}, err
	}
	shared := &attempts{}
	return s.repeat(ctx, who, cloud, d, func(before domain.Managed) (domain.NewManaged, *plan, error) {
		if err := checkMove(ctx, cloud, before, d.in.Schedule); err != nil {
			return domain.NewManaged{}, nil, err
		}
		made, err := s.draft(ctx, who, d, before, shared)
		if err == nil {
			err = s.actFor(ctx, cloud.InRegion(made.Schedule.Region), before, &made)
		}
		if err == nil {
			err = s.checkQuota(ctx, cloud.InRegion(made.Schedule.Region), before, made.Managed)
		}
		if err != nil || !d.dryRun {
			return made, nil, err
		}
		p, in := planOf(before, made), cloud.InRegion(made.Schedule.Region)
		if p.action == planUpdate {
			session := engine.Session{Cloud: in, ProjectID: who.ProjectID}
			p.decide(made.Kind, session.Changes(ctx, before, made.Managed))
		}
		if err := s.noteFiles(ctx, made.Managed, &p); err != nil {
			return made, nil, err
		}
		p.absent, err = s.absent(ctx, newCachedLists(ctx, in), before, made.Managed)
		return made, &p, err
	})
}

// repeat stores what draft makes of the stored resource, and repeats that while others change it.
func (s service) repeat(
	ctx context.Context, who domain.Identity, cloud *openstack.Session, d declaration,
	draft func(before domain.Managed) (domain.NewManaged, *plan, error),
) (outcome, error) {
	for range changeAttempts {
		before, err := s.store.Get(ctx, who.ProjectID, d.kind, d.name)
		if err != nil && apperr.CodeOf(err) != apperr.NotFound {
			return outcome{}, err
		}
		if err := d.expected.check(before.Version, before.Revision); err != nil {
			return outcome{}, err
		}
		if before.Request == domain.ManagedDelete {
			return outcome{}, apperr.New(apperr.Conflict, "the %s %q is being deleted: declare it after that",
				d.kind, d.name)
		}
		made, planned, err := draft(before)
		if err != nil || planned != nil {
			return outcome{Managed: made.Managed, plan: planned}, err
		}
		stored, created, err := s.declare(ctx, who, cloud, made)
		if !errors.Is(err, domain.ErrChanged) {
			return outcome{Managed: stored, created: created}, err
		}
	}
	return outcome{}, errRace()
}

// declare stores a declaration with the delegation that it takes.
func (s service) declare(
	ctx context.Context, who domain.Identity, cloud *openstack.Session, made domain.NewManaged,
) (stored domain.Managed, created bool, err error) {
	if made.UserID == who.UserID { // else it acts for another one still
		if made.Delegation, err = s.delegation(ctx, who, cloud, made.Kind); err != nil {
			return stored, false, err
		}
	}
	made.ConnectionID = made.Delegation.ConnectionID
	stored, created, err = s.store.Declare(ctx, made)
	s.settle(ctx, made.Delegation, stored.ConnectionID, err)
	if err == nil {
		s.wake("reconcile-managed", "run-connections", "deliver-events")
	}
	return stored, created, err
}

// actFor decides in whose name a declaration is made real. One that changes nothing leaves that to the user who has it
// now, for as long as what they have delegated lasts. Who changes it adopts it, and must have its key pair.
func (s service) actFor(
	ctx context.Context, cloud *openstack.Session, before domain.Managed, made *domain.NewManaged,
) error {
	if before.ID == uuid.Nil || before.UserID == made.UserID {
		return nil
	}
	if made.Repeats == 0 && planOf(before, *made).action == planNone {
		isActive, err := s.store.IsDelegated(ctx, before.ProjectID, before.ConnectionID)
		if err != nil {
			return err
		}
		if isActive {
			made.UserID, made.Delegation.ConnectionID = before.UserID, before.ConnectionID
			return nil
		}
	}
	return checkKeyPair(ctx, cloud.KeyPairs, made.Spec)
}

// delegation is what the caller has delegated for resources of a kind, or a new trust when less than half of that is
// left.
func (s service) delegation(
	ctx context.Context, who domain.Identity, cloud *openstack.Session, kind domain.Kind,
) (d domain.ManagedDelegation, err error) {
	now, err := s.store.Now(ctx)
	if err != nil {
		return d, err
	}
	d.Until = now.Add(s.trustFor / 2)
	roles, kinds, err := s.trusts.RolesFor(who, kind)
	if err != nil {
		return d, err
	}
	d.Kinds = kinds
	found, ok, err := s.store.Delegation(ctx, who.ProjectID, who.UserID, roles, d.Until)
	if err != nil || ok {
		d.ConnectionID = found.ID
		return d, err
	}
	d.New, err = s.trusts.Delegate(ctx, who, cloud, delegation.ForManaged(kind, now.Add(s.trustFor)))
	return d, err
}

// settle has a new trust revoked that no stored connection has: nothing was stored, or another request was faster.
func (s service) settle(ctx context.Context, d domain.ManagedDelegation, stored uuid.UUID, err error) {
	if d.New != nil && (err != nil || stored != d.New.ID) {
		s.trusts.Drop(ctx, d.New)
	}
}

// draft is the declaration that a request makes of a stored resource, which is zero for a new one.
func (s service) draft(
	ctx context.Context, who domain.Identity, d declaration, before domain.Managed, shared *attempts,
) (made domain.NewManaged, err error) {
	provider, _ := domain.ProviderOf(d.kind)
	made.Managed = before // a dry run also shows what is not declared
	made.ProjectID, made.DomainID, made.UserID = who.ProjectID, who.DomainID, who.UserID
	made.Kind, made.Name, made.Provider, made.Flavor = d.kind, d.name, provider.Name, d.in.Flavor
	made.Labels, made.Schedule, made.Repair = d.in.Labels, d.in.Schedule, d.in.repair()
	made.MaxRevisions, made.Actor = d.in.maxRevisions(), domain.ActorFrom(ctx)
	made.Digest = nil
	made.Before, made.PerProject = before.Version, s.perProject
	if made.ID == uuid.Nil {
		if err := checkServerNames(d); err != nil {
			return made, err
		}
		if err := s.store.CheckRoom(ctx, who.ProjectID, s.perProject); err != nil {
			return made, err
		}
		if made.ID, err = uuid.NewV7(); err != nil {
			return made, err
		}
		if made.CreatedAt, err = s.store.Now(ctx); err != nil {
			return made, err
		}
		made.UpdatedAt = made.CreatedAt
	}
	given, err := s.spec(ctx, who, d)
	if err != nil {
		return made, err
	}
	checked, err := checkSpec(d.kind, given)
	if err != nil {
		return made, err
	}
	made.Spec = checked.spec
	if err := checkSchedule(d.kind, made.Schedule); err != nil {
		return made, err
	}
	if err := checkTransition(before, made.Spec, made.Schedule); err != nil {
		return made, err
	}
	if checked.secret != "" && d.dryRun && len(before.Digest) == 0 {
		made.Digest = []byte{0} // differs, whatever it is
		return made, nil
	}
	if checked.secret != "" {
		if err := s.count(ctx, who, shared); err != nil {
			return made, err
		}
	}
	if err := s.seal(&made, before, checked, shared); err != nil {
		return made, err
	}
	if checked.secret == "" && !d.dryRun && planOf(before, made).action != planNone {
		return made, s.count(ctx, who, shared)
	}
	return made, nil
}

// count counts a declaration that computes a digest, or makes a revision and an event, at its first attempt.
func (s service) count(ctx context.Context, who domain.Identity, shared *attempts) error {
	if shared.isCounted {
		return nil
	}
	err := s.declarations.Take(ctx, who.ProjectID, "this project")
	shared.isCounted = err == nil
	return err
}

// spec is what is declared: the fields of the flavor's spec, replaced by those of the request.
func (s service) spec(ctx context.Context, who domain.Identity, d declaration) (map[string]any, error) {
	spec := map[string]any{}
	if d.in.Flavor != "" {
		flavor, err := s.flavors.Get(ctx, who.ProjectID, d.in.Flavor)
		if apperr.CodeOf(err) == apperr.NotFound {
			return nil, apperr.Unknown("flavor", "flavor", d.in.Flavor)
		}
		if err != nil {
			return nil, err
		}
		if flavor.Kind != d.kind {
			return nil, apperr.InvalidField("flavor", "is a template of the kind "+string(flavor.Kind))
		}
		spec = fields(flavor.Spec)
	}
	maps.Copy(spec, fields(json.RawMessage(d.in.Spec)))
	return spec, nil
}

// digestRounds makes guessing a short secret by its digest expensive.
const digestRounds = 100_000

// seal seals the secret of a declaration. One that is not given stays as it is, and so does the same again.
func (s service) seal(
	made *domain.NewManaged, before domain.Managed, checked checkedSpec, shared *attempts,
) (err error) {
	if !checked.hasSecret {
		made.KeepSecrets, made.Digest = before.ID != uuid.Nil, before.Digest
		if made.Kind == domain.KindSecret && len(made.Digest) == 0 {
			return apperr.InvalidField("spec.payload", "is missing")
		}
		if made.Kind == domain.KindSecret && isText(made.Spec) != isText(before.Spec) {
			return apperr.InvalidField("spec.payload",
				"is missing: content_type changes between text and base64, so it must be given again")
		}
		return nil
	}
	if checked.secret == "" {
		return nil
	}
	if shared.of != made.ID {
		shared.digest, err = pbkdf2.Key(sha256.New, checked.secret, made.ID[:], digestRounds, sha256.Size)
		if err != nil {
			return err
		}
		shared.of = made.ID
	}
	made.Digest = shared.digest
	if bytes.Equal(made.Digest, before.Digest) {
		made.KeepSecrets = true
		return nil
	}
	secrets := domain.ManagedSecrets{UserData: domain.UserData(checked.secret)}
	if made.Kind == domain.KindSecret {
		secrets = domain.ManagedSecrets{Payload: checked.secret}
	}
	text, err := json.Marshal(secrets)
	if err != nil {
		return err
	}
	made.Secrets, err = s.key.Seal(made.SealedFor(), domain.Secret(text))
	return err
}

// isText reports whether the payload of a secret is text.
func isText(spec json.RawMessage) bool {
	var s domain.SecretSpec
	_ = json.Unmarshal(spec, &s) // it was checked when it was stored
	return s.IsText()
}

// Delete has reconcile-managed delete a resource. It takes a delegation by the caller when the stored one has ended.
func (s service) Delete(
	ctx context.Context, who domain.Identity, token domain.Secret, d declaration,
) (domain.Managed, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	for range changeAttempts {
		before, err := s.store.Get(ctx, who.ProjectID, d.kind, d.name)
		if err != nil {
			return before, err
		}
		if err := d.expected.check(before.Version, before.Revision); err != nil {
			return before, err
		}
		before.Actor, before.Orphan = domain.ActorFrom(ctx), d.orphans
		var by *domain.ManagedDelegation
		isActive, err := s.store.IsDelegated(ctx, who.ProjectID, before.ConnectionID)
		if err != nil {
			return before, err
		}
		if !isActive && !d.orphans {
			d, err := s.delegation(ctx, who, cloud, d.kind)
			if err != nil {
				return before, err
			}
			by, before.UserID = &d, who.UserID
		}
		deleted, err := s.store.Delete(ctx, before, by)
		if by != nil {
			s.settle(ctx, *by, deleted.ConnectionID, err)
		}
		if errors.Is(err, domain.ErrChanged) {
			continue
		}
		if err == nil {
			s.wake("reconcile-managed", "run-connections", "deliver-events")
		}
		return deleted, err
	}
	return domain.Managed{}, errRace()
}

// checkQuota rejects more servers than the project's quota has room for. The trust of a declaration acts in the same
// project, so its servers would be refused later. What Nova cannot say now, reconcile-managed finds out. A declaration
// of no more servers than before passes: it may be a repeated one, whose servers are being made.
func (s service) checkQuota(ctx context.Context, cloud *openstack.Session, before, made domain.Managed) error {
	var declared, stored domain.DeploymentSpec
	_ = json.Unmarshal(made.Spec, &declared) // it was checked
	field := "spec.count"
	switch made.Kind {
	case domain.KindMachine, domain.KindPod:
		declared.Count, stored.Count, field = 1, min(before.Revision, 1), "spec.flavor"
	case domain.KindDeployment, domain.KindPodDeployment:
		_ = json.Unmarshal(before.Spec, &stored) // none of a new resource
	default:
		return nil
	}
	if declared.Count <= stored.Count {
		return nil
	}
	more := declared.Count
	for _, m := range made.Members {
		if m.ObjectID != "" && m.Status != domain.MemberDeleting {
			more--
		}
	}
	if more <= 0 {
		return nil
	}
	quota, err := cloud.Quota(ctx)
	if err != nil {
		slog.WarnContext(ctx, "the quota is not checked", "project_id", made.ProjectID, "error", err)
		return nil
	}
	size := domain.Flavor{}
	if flavors, err := cloud.Flavors(ctx); err == nil { // an unknown flavor has no size, and is refused later
		size, _ = lookup.PickFlavor(flavors, lookup.Ref{Field: "spec.flavor", Value: declared.Flavor})
	}
	need := domain.Need{Instances: more, VCPUs: more * size.VCPUs, RAMMB: more * size.RAMMB}
	lacks := quota.Shortages(need)
	if boot := declared.BootVolume; boot != nil && len(lacks) == 0 {
		field = "spec.boot_volume"
		quota, err := cloud.VolumeQuota(ctx)
		if err != nil {
			slog.WarnContext(ctx, "the quota of volumes is not checked", "project_id", made.ProjectID, "error", err)
			return nil
		}
		lacks = quota.Shortages(more, more*boot.SizeGB)
	}
	if len(lacks) == 0 {
		return nil
	}
	e := apperr.New(apperr.Quota, "the project's quota does not allow it: %s %s", field, lacks[0])
	e.Fields = []apperr.Field{{Field: field, Detail: lacks[0]}}
	return e
}
