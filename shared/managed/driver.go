// Package managed makes what is declared real: it holds the declared resources of a project against the objects of
// OpenStack that carry their marks, decides the next steps, and takes them. Each step may be repeated, so that a
// process that dies between any two calls loses nothing.
package managed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Driver makes, finds, changes and deletes the objects of some kinds. Every object carries the id of its member as a
// mark. A method that returns a WaitError is called again soon, which is no failure.
type Driver interface {
	Kinds() []domain.Kind
	// List finds all marked objects of the session's project, by their marks, in one paged listing. Of two objects
	// with one mark that which is stored in members is the member's, or else the older one; the others are its Extra.
	List(ctx context.Context, s Session, members []domain.Member) (map[uuid.UUID]Object, error)
	// Find reads an object by its id. Lists may leave out objects that exist, for example while a cell of Nova is down,
	// or when others have removed their marks. It is NotFound when the object is deleted. Without Raw only its
	// existence is known.
	Find(ctx context.Context, s Session, id string) (Object, error)
	// Create makes the object. It is idempotent by the mark: it looks the mark up before a POST is repeated. An
	// object that is incomplete is found by the member's ObjectID. An empty id with no error means that the object will
	// appear in a listing. in.Member.IsRequested reports whether an earlier call may have requested the object. An
	// error that is neither final nor an errUnsent leaves it open whether this call has.
	Create(ctx context.Context, s Session, in Desired) (objectID string, err error)
	// Differences compares what is declared with what is. Names of fields are those of the spec. It makes no call.
	Differences(in Desired, o Object) []Difference
	// Update takes one step to remove the differences, which are all InPlace. It is called again until none is left.
	// ErrNothingLeft means that nothing is left to do, whatever Differences can see. An errUnsent means that the call
	// that interrupts the object was not sent.
	Update(ctx context.Context, s Session, in Desired, o Object, differences []Difference) error
	// Delete deletes the object with what belongs to it. It is called again while the object is listed. An absent
	// object is no error.
	Delete(ctx context.Context, s Session, o Object) error
	// Needs lists the resources of the project that the spec names: they are made before it and deleted after it.
	Needs(spec json.RawMessage) []Ref
}

// Finisher is a Driver that has more to delete than the objects of a resource.
type Finisher interface {
	// Finish deletes what was made for the resource, whose objects are all deleted.
	Finish(ctx context.Context, s Session, m domain.Managed) error
}

// Checker is a Driver of objects that are deleted before what replaces them is made.
type Checker interface {
	// Check reports whether the object could be made once that of in.Member is deleted: it resolves what the spec names
	// for the session's user, as Create does. It may make what the next object belongs to, such as a server group that
	// Finish deletes with the resource, and never the object itself.
	Check(ctx context.Context, s Session, in Desired) error
}

// Ref names a managed resource of the project.
type Ref struct {
	Kind domain.Kind
	Name string
}

func (r Ref) String() string { return fmt.Sprintf("%s %s", r.Kind, r.Name) }

// Session makes calls to OpenStack in the name of a user, in one region.
type Session struct {
	Cloud     Cloud
	ProjectID string
	DomainID  string
	UserID    string
	Region    string // "" = the function's own

	lists *lists // of a pass; nil = nothing is kept
}

// Cloud is the part of OpenStack that the drivers need: each driver declares its own.
type Cloud interface {
	BalancerCloud
	ImageCloud
	MachineCloud
	SecretCloud
	VolumeCloud
}

// ObjectState is what an object is at.
type ObjectState string

// The states of an object.
const (
	ObjectWorking  ObjectState = "working" // OpenStack is making or changing it
	ObjectReady    ObjectState = "ready"
	ObjectError    ObjectState = "error"
	ObjectDeleting ObjectState = "deleting"
	// ObjectIncomplete is an object whose making was interrupted, such as an image without its content. Create is
	// called again: it finds the object by its mark, and completes it.
	ObjectIncomplete ObjectState = "incomplete"
)

// Object is an object of OpenStack that carries a mark.
type Object struct {
	ID        string
	Name      string
	State     ObjectState
	Reason    string // of the state, as OpenStack gives it; of a ready object: why it does not work
	CreatedAt time.Time
	// Phase is a sentence with the status that OpenStack gives. ChangedAt is when the object was changed last; zero =
	// not known. The reason shows both while OpenStack is at work for long.
	Phase     string
	ChangedAt time.Time
	Call      string   // the id of the create call that made it, or a copy of what it made; "" = not known
	Raw       any      // the driver's own
	Extra     []Object // others with the same mark
	// Keep reports whether the loss of the object loses more than the object, such as data or an address. In error it
	// is deleted and made again only while it never worked.
	Keep bool
}

// Desired is what an object should be.
type Desired struct {
	Resource domain.Managed
	Member   domain.Member
	Name     string                // of the object
	Spec     json.RawMessage       // of the resource's current revision
	Secrets  domain.ManagedSecrets // of that revision; opened for Create, Update and Check only
	// Made is the revision that the object was made or updated to, to compare what OpenStack does not show. It is
	// the current one when nothing has changed.
	Made domain.Revision
	// Since are the revisions that were declared after Made and before the current one: a step to one of them may have
	// been taken, and its object may have something of it.
	Since     []domain.Revision
	Zones     []string // the availability zones that the labels of the schedule leave; nil = any
	Inventory Inventory
	// Sending is called by Create before a call that may make a server with the files that are declared now: none of
	// the earlier calls has made it. nil = nothing is to be stored then.
	Sending func(context.Context) error

	names names // of a server, for Differences

	isThere *bool // set by found
}

// found reports whether Create has found the object by its mark, and has sent no call that makes one.
func (w Desired) found() {
	if w.isThere != nil {
		*w.isThere = true
	}
}

// asMade is what the revision declared that the object was made or updated to.
func (w Desired) asMade() Desired {
	if w.Made.Number == 0 { // it is not known
		return w
	}
	w.Spec = w.Made.Spec
	w.Resource.Revision, w.Resource.Spec, w.Resource.Secrets = w.Made.Number, w.Made.Spec, w.Made.Secrets
	w.Resource.Digest, w.Resource.Labels, w.Resource.Schedule = w.Made.Digest, w.Made.Labels, w.Made.Schedule
	return w
}

// had is what was declared in one of the object's revisions, of a field that is a map.
func had[T any](in Desired, field func(spec T) map[string]string) map[string]string {
	all := map[string]string{}
	for _, r := range append(in.Since, in.Made) {
		maps.Copy(all, field(read[T](r.Spec)))
	}
	return all
}

// Way is how a difference is removed.
type Way string

// The ways to remove a difference.
const (
	InPlace Way = "in_place"
	Replace Way = "replace" // by a new object
	Refused Way = "refused" // not at all: the declaration has to change
	OnlyNew Way = "new"     // not at all, and it need not be: new objects are as declared
)

// Difference is a field that is not as declared.
type Difference struct {
	Field    string
	Declared any
	Actual   any
	Way      Way
	Disrupts bool   // the object does not work while the difference is removed
	Why      string // of Refused: what its user can do
	// Continues reports whether a change is under way and takes another call, as a resize that has to be confirmed.
	Continues bool
	// Follows reports whether other resources of the project have changed, such as the servers of a load balancer or
	// the files of a configmap. It is removed whatever Repair says, and is no drift.
	Follows bool
	// IsMark reports whether others have removed a mark, which lists need: it is put back whatever Repair says.
	IsMark bool
	// Stays reports whether others have added it, and that its removal would lose something. It is drift, and never
	// removed.
	Stays bool
}

// Inventory looks up the other managed resources of the project.
type Inventory struct {
	resources map[Ref]domain.Managed
	objects   map[uuid.UUID]Object
}

// NewInventory returns an Inventory of these resources and their members' objects.
func NewInventory(resources []domain.Managed, objects map[uuid.UUID]Object) Inventory {
	a := Inventory{resources: make(map[Ref]domain.Managed, len(resources)), objects: objects}
	for _, m := range resources {
		a.resources[Ref{m.Kind, m.Name}] = m
	}
	return a
}

// Resource returns a managed resource of the project with its members.
func (a Inventory) Resource(kind domain.Kind, name string) (domain.Managed, bool) {
	m, ok := a.resources[Ref{kind, name}]
	return m, ok
}

// objectID returns the id of a member's object: it is found by its mark before it is stored. "" = it has none.
func (a Inventory) objectID(m domain.Member) string { return cmp.Or(m.ObjectID, a.objects[m.ID].ID) }

// Objects returns the objects of a resource that exist, in the order of its members.
func (a Inventory) Objects(m domain.Managed) []Object {
	var all []Object
	for _, member := range m.Members {
		if o, ok := a.objects[member.ID]; ok && o.State != ObjectDeleting {
			all = append(all, o)
		}
	}
	return all
}

// volume returns the object of a managed volume; empty if it has none.
func (a Inventory) volume(name string) (found Object) {
	m, _ := a.Resource(domain.KindVolume, name)
	for _, o := range a.Objects(m) {
		found = o
	}
	return found
}

// ErrNothingLeft means that an object is as declared.
var ErrNothingLeft = errors.New("the object is as declared")

// WaitError means that a step cannot be taken yet. It is no failure: the step is tried again soon.
type WaitError struct {
	Reason  string // one word in CamelCase
	Message string
}

func (w WaitError) Error() string { return w.Message }

// errUnsent marks errors of Create that came before its first call that makes something, and errors of Update that came
// before the call that interrupts the object.
var errUnsent = errors.New("nothing was requested")

func unsent(err error) error { return errors.Join(errUnsent, err) }

// sent is the outcome of the first call of Create that makes something: what has not reached OpenStack is unsent. It is
// not for a server, whose order is made later.
func sent(id string, err error) (string, error) {
	if errors.Is(err, apperr.ErrNotSent) {
		err = unsent(err)
	}
	return id, err
}

// because says in an error which call has failed. A WaitError stays as it is.
func because(err error, format string, args ...any) error {
	if isWait(err) {
		return err
	}
	cause := apperr.As(err)
	return apperr.Wrap(cause.Code, err, "%s: %s", fmt.Sprintf(format, args...), cause.Message)
}

// Waits makes a WaitError.
func Waits(reason, format string, args ...any) error {
	return WaitError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// isWait reports whether an error is a WaitError.
func isWait(err error) bool {
	_, is := errors.AsType[WaitError](err)
	return is
}

// waitsOn makes a WaitError of an error with one of the codes, by which a service says that something else comes first.
func waitsOn(err error, reason string, codes ...apperr.Code) error {
	if slices.Contains(codes, apperr.CodeOf(err)) {
		return Waits(reason, "%s", apperr.As(err).Message)
	}
	return err
}
