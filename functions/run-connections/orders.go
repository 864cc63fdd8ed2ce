package runconnections

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// orderTime is for how long one order keeps its worker: then others are worked on.
const orderTime = 40 * time.Second

func (s *service) engine(c domain.Connection) orders.Engine {
	return orders.Engine{Orders: s.orders, Instances: s.instances, Wake: func() { s.wakeFor(c) }, Fence: claimFor}
}

// order works on an order, if no other replica does.
func (s *service) order(ctx context.Context, c domain.Connection, id uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	err := s.cloud.Use(ctx, c, func(cloud session) error { return s.workOn(ctx, cloud, c, id) })
	if unopened, ok := errors.AsType[delegation.UnopenedError](err); ok {
		s.unopened(ctx, c, unopened.Cause)
		return
	}
	if code := apperr.CodeOf(err); code == apperr.Forbidden || code == apperr.Invalid || errors.Is(err, errTooLong) {
		slog.WarnContext(ctx, "order abandoned", "order_id", id, "connection_id", c.ID, "error", err)
		err = s.engine(c).Abandon(ctx, c.ProjectID, id, domain.ProblemOf(err))
	}
	if err == nil || errors.Is(err, domain.ErrFenced) {
		return
	}
	slog.WarnContext(ctx, "order resumed later", "order_id", id, "connection_id", c.ID, "error", err)
	if delegation.MayBeLost(err) {
		s.postpone(ctx, c, id)
	}
}

// postpone delays an order whose cloud is not available although Keystone accepts the delegation.
func (s *service) postpone(ctx context.Context, c domain.Connection, id uuid.UUID) {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	order, err := s.orders.Get(ctx, c.ProjectID, id)
	if err == nil {
		err = s.delegations.Postpone(ctx, c.ProjectID, id, s.pauseFor(ctx, order.CreatedAt))
	}
	if err != nil {
		slog.WarnContext(ctx, "order not postponed", "order_id", id, "error", err)
	}
}

// pauseFor is the pause of work that fails. It grows with the age of the work.
func (s *service) pauseFor(ctx context.Context, since time.Time) time.Duration {
	now, err := s.db.Now(ctx)
	if err != nil {
		return retryPause
	}
	return min(max(now.Sub(since)/8, retryPause), longestRetry)
}

// errTooLong ends an order that Nova never finishes, such as one whose server is locked.
var errTooLong = apperr.New(apperr.Conflict, "the servers were not launched within %s", retryFor)

// workOn has the engine work on the order until it is settled or the time is up.
func (s *service) workOn(ctx context.Context, cloud session, c domain.Connection, id uuid.UUID) error {
	order, err := s.orders.Get(ctx, c.ProjectID, id)
	if err != nil || order.Status != domain.OrderRunning {
		return err
	}
	if order.ReadAt.Sub(c.WaitingSince(order.CreatedAt)) > retryFor {
		return errTooLong
	}
	wanted, err := s.openOrder(order)
	if err != nil {
		return err
	}
	claim, err := s.engine(c).Claim(ctx, order)
	if err != nil || !claim.Acquired {
		return err
	}
	session := orders.Session{
		Cloud: cloud, Keys: cloud, UserData: make([]domain.Secret, len(wanted.Servers)), IsFatal: delegation.MayBeLost,
		Follows: true,
	}
	for n, server := range wanted.Servers {
		session.UserData[n] = domain.Secret(server.UserData)
	}
	session.Prepare = func(ctx context.Context, order domain.Order, claim domain.Claim) (domain.Order, error) {
		return preparing{s, cloud, c, wanted, claim}.prepare(ctx, order)
	}
	_, unfinished, err := s.engine(c).Run(ctx, session, order, claim)
	return errors.Join(unfinished, err)
}

// openOrder decrypts the order's sealed part.
func (s *service) openOrder(order domain.Order) (wanted domain.DelegatedOrder, err error) {
	err = s.unseal(order.SealedFor(), order.Payload, &wanted)
	if err == nil && len(wanted.Servers) != len(order.Instances) {
		err = damaged(nil)
	}
	return wanted, err
}

// unseal decrypts the sealed part of an order or an action. A missing key is the operator's mistake, which may be
// repaired.
func (s *service) unseal(purpose string, sealed []byte, into any) error {
	text, err := s.seal.Open(purpose, sealed)
	switch {
	case errors.Is(err, seal.ErrOtherKey):
		return delegation.UnopenedError{Cause: err}
	case err != nil:
		return damaged(err)
	case json.Unmarshal([]byte(text.Reveal()), into) != nil: // whose error may quote it
		return damaged(nil)
	}
	return nil
}

func damaged(cause error) error {
	return apperr.Wrap(apperr.Invalid, cause, "the stored request is corrupt: send it again")
}

// endedBy is the problem of work that is abandoned because its connection has ended.
func endedBy(c domain.Connection) *domain.Problem {
	switch {
	case c.Status == domain.ConnectionLost:
		return &domain.Problem{
			Code:   string(apperr.DelegationLost),
			Detail: "the connection can no longer be used: " + c.Reason,
		}
	case c.Reason == "":
		return &domain.Problem{Code: string(apperr.Forbidden), Detail: "the connection has ended"}
	}
	return &domain.Problem{Code: string(apperr.Forbidden), Detail: "the connection has ended: " + c.Reason}
}

// abandon ends the waiting orders and actions of a connection that has ended.
func (s *service) abandon(ctx context.Context, c domain.Connection) {
	why := endedBy(c)
	if c.Status != domain.ConnectionLost { // the entry of a lost connection stays, to prevent further logins
		s.cloud.Forget(c.ID)
	}
	err := s.abandonActions(ctx, c, why)
	ids, listing := s.delegations.Orders(ctx, c.ProjectID, c.ID, listed)
	err = errors.Join(err, listing)
	for _, id := range ids {
		err = errors.Join(err, s.engine(c).Abandon(ctx, c.ProjectID, id, why))
	}
	if err != nil {
		slog.WarnContext(ctx, "work of ended connection abandoned later", "connection_id", c.ID,
			"error", err)
	}
}

// preparing is an order whose servers are about to be created.
type preparing struct {
	*service

	cloud      session
	connection domain.Connection
	wanted     domain.DelegatedOrder
	claim      domain.Claim
}

// prepare resolves the names in the undecided instances, gives the order's key to the delegating user, and stores both.
// An error that is a rejection ends the undecided instances.
func (p preparing) prepare(ctx context.Context, order domain.Order) (domain.Order, error) {
	order, err := p.checkReused(ctx, order)
	if err != nil {
		return order, err
	}
	order.Instances = slices.Clone(order.Instances)
	undecided := order
	undecided.Instances = nil
	places := p.places(order)
	if len(places) == 0 {
		return order, nil
	}
	err = p.resolve(ctx, order, places)
	if err == nil {
		err = p.withinLimits(order, places)
	}
	if err == nil {
		err = p.giveKey(ctx, order, places)
	}
	for _, n := range places {
		undecided.Instances = append(undecided.Instances, order.Instances[n])
	}
	switch {
	case apperr.Final(err):
		return p.engine(p.connection).FailUndecided(ctx, order, p.claim, domain.ProblemOf(err))
	case err != nil:
		return order, err
	}
	return order, p.orders.UpdateSpecs(ctx, undecided, p.claim)
}

// places are those of the instances that are undecided.
func (p preparing) places(order domain.Order) (places []int) {
	for n, i := range order.Instances {
		if !i.Decided() {
			places = append(places, n)
		}
	}
	return places
}

// resolve looks up the images, networks and security groups of those instances whose specs have none yet.
func (p preparing) resolve(ctx context.Context, order domain.Order, places []int) error {
	images := map[string][]domain.Image{}
	var networks []domain.Network
	groups := sync.OnceValues(func() ([]domain.SecurityGroup, error) { return p.cloud.SecurityGroups(ctx) })
	listGroups := func(context.Context) ([]domain.SecurityGroup, error) { return groups() }
	for _, n := range places {
		spec, server := &order.Instances[n].Spec, p.wanted.Servers[n]
		if spec.ImageID != "" && len(spec.NetworkIDs) > 0 {
			continue
		}
		if networks == nil {
			var err error
			if networks, err = p.networks(ctx); err != nil {
				return err
			}
		}
		if _, known := images[server.Image]; !known {
			found, err := lookup.FindImages(ctx, p.cloud, server.Image)
			if err != nil {
				return err
			}
			images[server.Image] = found
		}
		if err := p.pick(spec, server, images[server.Image], networks); err != nil {
			return err
		}
		if err := p.pickExternal(ctx, spec); err != nil {
			return err
		}
		ids, err := lookup.FindSecurityGroups(ctx, listGroups, "security_groups", spec.SecurityGroups)
		if err != nil {
			return err
		}
		spec.SecurityGroups = ids
	}
	return nil
}

// networks lists the networks that names may mean. If a server names none, it also reads which networks are external.
func (p preparing) networks(ctx context.Context) ([]domain.Network, error) {
	if slices.ContainsFunc(p.wanted.Servers, func(s domain.DelegatedServer) bool { return len(s.Networks) == 0 }) {
		return p.cloud.Networks(ctx)
	}
	return p.cloud.NetworkNames(ctx)
}

func (p preparing) pick(
	spec *domain.LaunchSpec, server domain.DelegatedServer, images []domain.Image, networks []domain.Network,
) error {
	image, err := lookup.PickAllowedImage(images, lookup.Ref{Field: "image", Value: server.Image}, p.connection.Limits)
	if err != nil {
		return err
	}
	refs := make([]lookup.Ref, len(server.Networks))
	for n, name := range server.Networks {
		refs[n] = lookup.Ref{Field: fmt.Sprintf("networks[%d]", n), Value: name}
	}
	chosen, err := lookup.PickAllowedNetworks(networks, refs, p.connection.Limits)
	if err != nil {
		return err
	}
	spec.ImageID, spec.NetworkIDs = image.ID, nil
	for _, ref := range chosen {
		spec.NetworkIDs = append(spec.NetworkIDs, ref.Value)
	}
	return spec.BootFrom(image, "boot_volume")
}

// pickExternal resolves the network of a floating IP. Without one it is chosen later, when the server has its ports,
// unless the connection's limits have to be held.
func (p preparing) pickExternal(ctx context.Context, spec *domain.LaunchSpec) error {
	f := spec.FloatingIP
	if f == nil || f.NetworkID == "" && len(p.connection.Limits.Networks) == 0 {
		return nil
	}
	external, err := p.cloud.ExternalNetworks(ctx)
	if err != nil {
		return err
	}
	picked, err := lookup.PickExternalNetwork(external, lookup.Ref{Field: "floating_ip", Value: f.NetworkID})
	spec.FloatingIP = &domain.ServerFloatingIP{NetworkID: picked.ID}
	return err
}

// giveKey gives the public half of the order's key pair to the delegating user, and records the fingerprints of the
// keys that the instances get. The pair may be there already: a replica that died has given it.
func (p preparing) giveKey(ctx context.Context, order domain.Order, places []int) error {
	var prints map[string]string
	for _, n := range places {
		i := &order.Instances[n]
		i.KeyName = i.Spec.KeyName
		if i.KeyName == "" || i.KeyFingerprint != "" {
			continue
		}
		if prints == nil {
			var err error
			if prints, err = p.fingerprints(ctx, order); err != nil {
				return err
			}
		}
		i.KeyFingerprint = prints[i.KeyName]
	}
	return nil
}

// fingerprints imports the order's own key pair and returns the fingerprints of key pairs, by name. It leaves out the
// others if the credential may not list them.
func (p preparing) fingerprints(ctx context.Context, order domain.Order) (map[string]string, error) {
	prints := map[string]string{}
	own := order.Spec.GeneratedKey
	if own != "" && p.wanted.PublicKey != "" {
		made, err := p.cloud.ImportKeyPair(ctx, own, p.wanted.PublicKey)
		if apperr.CodeOf(err) != apperr.Conflict {
			prints[own] = made.Fingerprint
			return prints, err
		}
		if prints, err = p.listed(ctx); err == nil && prints[own] != fingerprint(p.wanted.PublicKey) {
			err = apperr.New(apperr.Conflict, "there is another key pair %q already", own)
		}
		return prints, err
	}
	prints, err := p.listed(ctx)
	if code := apperr.CodeOf(err); code == apperr.Unauthenticated || code == apperr.Forbidden {
		return map[string]string{}, nil
	}
	return prints, err
}

func (p preparing) listed(ctx context.Context) (map[string]string, error) {
	pairs, err := p.cloud.KeyPairs(ctx)
	prints := make(map[string]string, len(pairs))
	for _, k := range pairs {
		prints[k.Name] = k.Fingerprint
	}
	return prints, err
}

// fingerprint is a public key's fingerprint as Nova writes it; "" if the text is not a public key.
func fingerprint(publicKey string) string {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(publicKey))
	if err != nil {
		return ""
	}
	return ssh.FingerprintLegacyMD5(key)
}

// withinLimits checks the resolved specs against the connection's limits, which may have changed since the order was
// placed.
func (p preparing) withinLimits(order domain.Order, places []int) error {
	limits := p.connection.Limits
	if err := limits.CheckRegion("connection_id", p.connection.RegionIn(p.region)); err != nil {
		return err
	}
	for _, n := range places {
		if err := limits.CheckSpec(order.Instances[n].Spec); err != nil {
			return err
		}
	}
	return nil
}

// maxReplacements is how often the instances of an order are replaced before the next event continues.
const maxReplacements = 10

// checkReused checks the idle servers that the order reuses before they are started. A server that is deleted, or has
// another image than the order's, is replaced: by another idle server, or by a new one.
func (p preparing) checkReused(ctx context.Context, order domain.Order) (domain.Order, error) {
	images := map[string]domain.Image{}
	for range maxReplacements {
		replaced := false
		for n, i := range order.Instances {
			if !order.IsReplaced(i) && (!order.IsReused(i) || i.State != domain.InstanceStopped || i.ServerID == "") {
				continue
			}
			done, err := p.replace(ctx, order, n, images)
			if err != nil {
				return order, err
			}
			replaced = replaced || done
		}
		if !replaced {
			return order, nil
		}
		var err error
		if order, err = p.orders.Get(ctx, order.ProjectID, order.ID); err != nil {
			return order, err
		}
	}
	return order, apperr.New(apperr.Unavailable, "%d idle servers in a row were deleted", maxReplacements)
}

// replace replaces the nth instance of the order, unless its server is there and has the image.
func (p preparing) replace(
	ctx context.Context, order domain.Order, n int, images map[string]domain.Image,
) (done bool, err error) {
	wanted, taken := p.replacement(order, n), order.Instances[n]
	image, err := p.image(ctx, p.wanted.Servers[n].Image, images)
	switch {
	case apperr.Final(err):
		wanted.Problem = domain.ProblemOf(err)
	case err != nil:
		return false, err
	default:
		wanted.Spec.ImageID = image.ID
	}
	server, err := p.cloud.Server(ctx, taken.ServerID)
	there := err == nil && server.Status != "DELETED" &&
		domain.StateOf(server.Status, server.Task) != domain.InstanceDeleting
	has := ""
	switch {
	case err != nil && apperr.CodeOf(err) != apperr.NotFound:
		return false, err
	case there && server.Partial:
		return false, apperr.New(apperr.Unavailable, "the cell of the server %s is down", server.ID)
	case there:
		if server.Image != nil {
			has = server.Image.ID
		}
		if wanted.Problem == nil && has == image.ID {
			return false, nil
		}
	default:
		if err != nil {
			server = domain.Server{ID: taken.ServerID, Status: "DELETED", Partial: true}
		}
		if err := p.recordDeleted(ctx, taken, server); err != nil {
			return false, err
		}
	}
	slog.InfoContext(ctx, "an idle server is replaced", "order_id", order.ID, "instance_id", taken.ID, "server_id",
		taken.ServerID, "is_there", there,
		"has_image", has, "wants_image", wanted.Spec.ImageID)
	return true, p.orders.ReplaceReused(ctx, order, p.claim, n, has, wanted)
}

// recordDeleted records that the instance's server is deleted, or is being deleted, so that no order reuses it.
func (p preparing) recordDeleted(ctx context.Context, i domain.Instance, server domain.Server) error {
	if !i.Found(server) {
		return nil
	}
	i.SeenAt = time.Time{} // now
	_, err := p.instances.Change(ctx, []domain.Instance{i})
	return err
}

// replacement is the new instance for the nth place of the order.
func (p preparing) replacement(order domain.Order, n int) domain.Instance {
	taken, server := order.Instances[n], p.wanted.Servers[n]
	i := domain.Instance{
		ID: uuid.New(), ProjectID: order.ProjectID, OrderID: order.ID, Name: server.Name,
		State: domain.InstanceRequested, Spec: *server.Spec, ConnectionID: order.ConnectionID, Remote: taken.Remote,
	}
	i.Spec.ImageID, i.Spec.NetworkIDs, i.KeyName = "", nil, i.Spec.KeyName // they are looked up again
	return i
}

// image is the image of that name, looked up unless it is known.
func (p preparing) image(ctx context.Context, name string, known map[string]domain.Image) (domain.Image, error) {
	if image, ok := known[name]; ok {
		return image, nil
	}
	found, err := lookup.FindImages(ctx, p.cloud, name)
	if err != nil {
		return domain.Image{}, err
	}
	image, err := lookup.PickAllowedImage(found, lookup.Ref{Field: "image", Value: name}, p.connection.Limits)
	if err == nil {
		known[name] = image
	}
	return image, err
}
