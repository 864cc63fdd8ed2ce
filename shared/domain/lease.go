package domain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// LeaseStatus is how far a lease has come.
type LeaseStatus string

// The statuses of a lease.
const (
	LeasePending   LeaseStatus = "pending"   // its instances are shelved, its hosts are allocated
	LeaseStarting  LeaseStatus = "starting"  // run-leases unshelves and prepares
	LeaseActive    LeaseStatus = "active"    // its period runs
	LeaseEnding    LeaseStatus = "ending"    // run-leases does what on_end says, and returns the hosts
	LeaseEnded     LeaseStatus = "ended"     // its period has ended and nothing of it is left in OpenStack
	LeaseCancelled LeaseStatus = "cancelled" // it was deleted before its start
	LeaseError     LeaseStatus = "error"     // see Problem; it can be retried, and it still ends
)

// LeaseStatuses lists every status, for messages and checks.
func LeaseStatuses() []string {
	return texts(LeasePending, LeaseStarting, LeaseActive, LeaseEnding, LeaseEnded, LeaseCancelled, LeaseError)
}

// LeaseTransitions are the statuses that may follow each status of a lease.
var LeaseTransitions = map[LeaseStatus][]LeaseStatus{
	LeasePending:   {LeaseStarting, LeaseEnding, LeaseCancelled, LeaseError},
	LeaseStarting:  {LeaseActive, LeaseEnding, LeaseError},
	LeaseActive:    {LeaseEnding, LeaseError},
	LeaseEnding:    {LeaseEnded, LeaseCancelled, LeaseError},
	LeaseEnded:     {},
	LeaseCancelled: {},
	LeaseError:     {LeasePending, LeaseStarting, LeaseActive, LeaseEnding, LeaseEnded, LeaseCancelled},
}

// Permissions are those that a connection needs to handle the lease's instances.
func (l Lease) Permissions() []Permission {
	all := []Permission{MayStart, MayStop, MayShelve}
	if l.OnEnd == OnEndDelete || l.OnEnd == OnEndSnapshotDelete {
		all = append(all, MaySnapshot, MayDeallocate)
	}
	if l.Volumes() {
		all = append(all, MayAttach)
	}
	return all
}

// HandledBy reports whether a connection lasts for the lease, and permits what its instances need.
func (l Lease) HandledBy(c Connection) bool {
	isMissing := func(p Permission) bool { return !slices.Contains(c.Actions, p) }
	return !c.EndsAt().Before(l.EndsAt) && !slices.ContainsFunc(l.Permissions(), isMissing)
}

// IsOpen reports whether a lease of the status has not ended.
func (s LeaseStatus) IsOpen() bool { return s != LeaseEnded && s != LeaseCancelled }

// IsEnding reports whether the end of the lease has been begun, and may have failed.
func (l Lease) IsEnding() bool {
	return l.Status == LeaseEnding || l.Status == LeaseError && l.EndResult == StepFailed
}

// CheckRetry is a Conflict for a lease that is neither in error nor ending.
func (l Lease) CheckRetry() error {
	if l.Status == LeaseError || l.Status == LeaseEnding {
		return nil
	}
	return apperr.New(apperr.Conflict, "the lease is %s: only one that is ending or in error can be retried", l.Status)
}

// DriftCode is the code of the problem of a pending lease whose instance its owner has started.
const DriftCode = "drift"

// OnEnd is what happens to servers when their lease ends.
type OnEnd string

// What may happen at the end of a lease.
const (
	OnEndShelve         OnEnd = "shelve"          // their disks are kept, as images
	OnEndStop           OnEnd = "stop"            // they stay on their host, as paused ones do: not for reserved hosts
	OnEndSnapshotDelete OnEnd = "snapshot_delete" // an image is made of each, then it is deleted
	OnEndDelete         OnEnd = "delete"
	OnEndNone           OnEnd = "none" // they are left as they are: its user has ended the lease so
)

// OnEnds lists what a request may have happen at the end, for messages and checks.
func OnEnds() []string { return texts(OnEndShelve, OnEndStop, OnEndSnapshotDelete, OnEndDelete) }

// StepResult is how the start or the end of a lease went; "" = it has not happened.
type StepResult string

// The results of steps.
const (
	StepDone    StepResult = "done"
	StepSkipped StepResult = "skipped" // the lease was over before it could start
	StepFailed  StepResult = "failed"
)

// Lease is a period with reservations, which begins and ends automatically. All times are the database's.
type Lease struct {
	ID        uuid.UUID
	ProjectID string
	DomainID  string
	UserID    string
	Name      string
	Status    LeaseStatus
	Problem   *Problem // why it is in error, or why a step is repeated
	Degraded  bool     // a host is down or cordoned, and no other has taken its place
	StartsAt  time.Time
	EndsAt    time.Time
	Length    Period        // of the request; zero = it gave the end, or the lease is as it is stored
	BeforeEnd time.Duration // the warning comes so long before the end; 0 = none
	OnEnd     OnEnd
	Heal      Heal // of a change: of all its hosts; "" = as it is

	VolumeEnds   map[uuid.UUID]VolumeEnd // of a change: by reservation; others stay
	Enforce      bool                    // an instance that its owner starts before the start is shelved again
	ConnectionID uuid.UUID               // what its instances are handled with; zero = the service account
	// SharesConnection reports whether the request named the connection, so that it does not end with the lease.
	SharesConnection bool
	OrderID          uuid.UUID // the order that it was made with; zero = none
	Actor            *Actor    // who requested the last change
	StartResult      StepResult
	StartedAt        time.Time // when the start was done; zero = it was not
	EndingSince      time.Time // when its end was begun; zero = it was not
	EndResult        StepResult
	EndedAt          time.Time
	WarnedAt         time.Time // zero = not yet
	Seq              int64     // of its last event
	Version          int64     // of its ETag
	DueAt            time.Time // when run-leases has work; zero = never again
	Attempts         int       // of the step that fails
	CreatedAt        time.Time
	UpdatedAt        time.Time
	Reservations     []Reservation // in the order of the request
	Repeated         bool          // the same request had stored it before
}

// ReservationType is what a reservation reserves.
type ReservationType string

// The types of reservations.
const (
	InstanceReservation ReservationType = "instance" // time: shelving does not hold capacity
	HostReservation     ReservationType = "host"     // capacity
	VolumeReservation   ReservationType = "volume"   // of an instance of the same lease
)

// ReservationStatus is the status of one reservation.
type ReservationStatus string

// The statuses of a reservation.
const (
	ReservationPending ReservationStatus = "pending"
	ReservationActive  ReservationStatus = "active"
	ReservationEnded   ReservationStatus = "ended"
)

// Reservation is one part of a lease.
type Reservation struct {
	ID          uuid.UUID
	ProjectID   string
	LeaseID     uuid.UUID
	Type        ReservationType
	Status      ReservationStatus
	Problem     *Problem
	InstanceID  uuid.UUID      // of an instance reservation
	Connect     *Instance      // of a new reservation: the server to connect, which gives InstanceID
	WasRunning  bool           // before the lease shelved the instance
	WaitsFor    uuid.UUID      // the earlier lease in which the instance is; zero = none
	ActionID    uuid.UUID      // what run-connections does to the instance or volume now; zero = nothing
	ActionsDone int            // how many before that have ended
	PreparedAt  time.Time      // when the instance first waited for the start, or had the volume; zero = not yet
	Volume      *LeasedVolume  // of a volume reservation
	Request     *HostRequest   // of a host reservation
	Flavors     []LeasedFlavor // of a host reservation
	AggregateID int            // Nova's; 0 = not made yet
	Trait       string         // of its hosts, while they are the reservation's
	Allocations []Allocation   // of a host reservation
	Servers     []EndingServer // that the end of a host reservation has changed
}

// EndingServer is what was done to a server to end it.
type EndingServer struct {
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"`
	Did     string    `json:"did,omitempty"`     // besides on_end, for its owner
	Locked  bool      `json:"locked,omitempty"`  // by run-leases: it is unlocked when it has left the host
	ResetAt time.Time `json:"reset_at,omitzero"` // from ERROR to active, last; zero = it was not
	Resets  int       `json:"resets,omitempty"`  // how often while the lease ends
}

// Heal is what happens when a host of an active reservation fails.
type Heal string

// What may happen.
const (
	HealAuto   Heal = "auto"   // another host takes its place
	HealManual Heal = "manual" // the reservation waits for it, degraded
)

// LeasedFlavor is a private flavor that requires a reservation's trait, and the flavor that it is a copy of.
type LeasedFlavor struct {
	ID     string `json:"id"` // deterministic, so that a repeated step finds it
	Name   string `json:"name"`
	BaseID string `json:"base_id"`
	Base   string `json:"base"` // the base flavor's name
	VCPUs  int    `json:"vcpus"`
	RAMMB  int    `json:"ram_mb"`
	DiskGB int    `json:"disk_gb"`
}

// Allocation is a host that a reservation has for a time.
type Allocation struct {
	ProjectID     string
	LeaseID       uuid.UUID // only some queries fill it
	ReservationID uuid.UUID
	Node          string
	From          time.Time
	Until         time.Time // with the time for cleaning
	PreparedAt    time.Time // zero = the host is not the reservation's in Nova and Placement yet
	ReplacedAt    time.Time // zero = no other host has taken its place
	ReleasedAt    time.Time // zero = not returned yet
}

// AllocationQuery selects allocations of all projects at any time between two, by host and time.
type AllocationQuery struct {
	From, Until time.Time
	Limit       int        // 0 = all
	After       Allocation // the last one before; zero = from the beginning
}

// FreeSlot is a period in which hosts are free.
type FreeSlot struct {
	From  time.Time
	Until time.Time
	Hosts int // free during all of it
}

// FreeQuery is a search for free hosts.
type FreeQuery struct {
	Request  HostRequest   // without Min and Max
	Hosts    int           // how many at the same time
	Length   Period        // months and years are those from the start of each slot
	Cleaning time.Duration // must be free after it, too
	From     time.Time
	Until    time.Time
	Limit    int
}

// Validate checks what the user chooses.
func (l Lease) Validate() error {
	if strings.TrimSpace(l.Name) == "" {
		return apperr.InvalidField("name", "must not be blank")
	}
	return nil
}

// LeaseQuery selects leases of a project.
type LeaseQuery struct {
	Statuses []LeaseStatus // none = all
	Name     string        // part of the name
	Type     ReservationType
	Instance uuid.UUID // only leases of it; zero = all
	Limit    int
	Marker   uuid.UUID // id of the last lease of the page before
}

// NewLease is a lease to store, with all that is stored with it or not at all.
type NewLease struct {
	Lease      Lease
	Connection *Connection // what its instances are handled with, made for it; nil = none
	BodySHA256 []byte      // of a request whose id the caller chose; nil = the id is new
	Rules      LeaseRules
}

// LeaseRules are the operator's limits of leases.
type LeaseRules struct {
	Longest    time.Duration // from start to end; 0 = unlimited
	Ahead      time.Duration // from now to the start; 0 = unlimited
	PerProject int           // open leases; 0 = unlimited
	Cleaning   time.Duration // between two reservations of a host
}

// FreeError is a Conflict of a reservation, with the first time at which it would fit.
type FreeError struct {
	Refusal *apperr.Error
	FreeAt  time.Time // zero = never: too few hosts match, or the lease has begun
	FreeEnd time.Time // the end of the lease when it begins then; zero when FreeAt is
	EndsBy  time.Time // how far a lease that has begun can be extended; zero = of any other refusal
}

// Error implements error.
func (e *FreeError) Error() string { return e.Refusal.Error() }

// Unwrap returns the refusal.
func (e *FreeError) Unwrap() error { return e.Refusal }

// LeaseTerms is the period of a lease as a user requests it, and what happens at its end.
type LeaseTerms struct {
	Start     time.Time // zero, or in the past = now
	End       time.Time // zero = Duration decides
	Duration  Period
	BeforeEnd *Period // zero = no warning; nil = warnBefore, for leases that are longer
	OnEnd     OnEnd   // "" = shelve
}

// warnBefore is how long before its end a lease warns by default.
const warnBefore = time.Hour

// lastYear is the last one that RFC 3339 can write.
const lastYear = 9999

// NewLease completes a lease that was never stored: a request, an order or an adoption has set whose it is. The rules
// are those for the requester, and now is the database's clock. The error names the field.
func (t LeaseTerms) NewLease(lease Lease, rules LeaseRules, now time.Time) (NewLease, error) {
	if lease.ID == uuid.Nil {
		lease.ID = uuid.Must(uuid.NewV7())
	}
	lease.Status = cmp.Or(lease.Status, LeasePending)
	err := t.Apply(&lease, rules, now)
	return NewLease{Lease: lease, Rules: rules}, err
}

// Apply sets the lease's period. now is the database's clock. The error names the field.
func (t LeaseTerms) Apply(lease *Lease, rules LeaseRules, now time.Time) error {
	if !t.Start.Equal(lease.StartsAt) || t.Start.IsZero() { // its start is new
		lease.StartsAt = now
		if t.Start.After(now) {
			lease.StartsAt = t.Start
		}
		if latest := now.Add(rules.Ahead).UTC(); rules.Ahead > 0 && lease.StartsAt.After(latest) {
			return apperr.InvalidField("start", fmt.Sprintf("is too far ahead: a lease may begin %s from now, at %s "+
				"at the latest", PeriodOf(rules.Ahead), latest.Format(time.RFC3339)), latest.Format(time.RFC3339))
		}
	}
	lease.EndsAt, lease.Length, lease.OnEnd = t.End, t.Duration, OnEndShelve
	if t.OnEnd != "" {
		lease.OnEnd = t.OnEnd
	}
	field := "end"
	if !t.Duration.IsZero() {
		field, lease.EndsAt = "duration", t.Duration.AddTo(lease.StartsAt)
	}
	lease.StartsAt = lease.StartsAt.UTC().Truncate(time.Microsecond)
	lease.EndsAt = lease.EndsAt.UTC().Truncate(time.Microsecond)
	switch {
	case lease.EndsAt.Year() > lastYear:
		return apperr.InvalidField(field, fmt.Sprintf("leads beyond the year %d", lastYear))
	case !lease.EndsAt.After(lease.StartsAt):
		return apperr.InvalidField(field, "must be after the start, "+lease.StartsAt.Format(time.RFC3339Nano))
	}
	if t.BeforeEnd != nil {
		lease.WarnBefore(*t.BeforeEnd)
	} else if lease.EndsAt.Sub(lease.StartsAt) > warnBefore {
		lease.BeforeEnd = warnBefore
	}
	return nil
}

// WarnBefore sets how long before its end the lease warns: months count backwards from the end.
func (l *Lease) WarnBefore(p Period) { l.BeforeEnd = l.EndsAt.Sub(p.Before(l.EndsAt)) }

// EndFrom is the end of the lease if it began at another time: months and years are those of the calendar.
func (l Lease) EndFrom(start time.Time) time.Time {
	if l.Length.IsZero() {
		return start.Add(l.EndsAt.Sub(l.StartsAt))
	}
	return l.Length.AddTo(start)
}

// Instances reports whether the lease reserves any instance.
func (l Lease) Instances() bool { return l.reserves(InstanceReservation) }

// Hosts reports whether the lease reserves any host.
func (l Lease) Hosts() bool { return l.reserves(HostReservation) }

func (l Lease) reserves(kind ReservationType) bool {
	for _, r := range l.Reservations {
		if r.Type == kind {
			return true
		}
	}
	return false
}

// Changed lists the fields, by their names in the API, in which a user has changed the lease.
func (l Lease) Changed(after Lease) []string {
	fields := []string{}
	for name, isChanged := range map[string]bool{
		"name": l.Name != after.Name, "start": !l.StartsAt.Equal(after.StartsAt), "end": !l.EndsAt.Equal(after.EndsAt),
		"before_end": l.BeforeEnd != after.BeforeEnd, "on_end": l.OnEnd != after.OnEnd,
		"enforce": l.Enforce != after.Enforce, "heal": after.Heal != "" && !l.healsBy(after.Heal),
		"reservations": l.changesVolumes(after.VolumeEnds),
	} {
		if isChanged {
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	return fields
}

// changesVolumes reports whether a volume has another end.
func (l Lease) changesVolumes(ends map[uuid.UUID]VolumeEnd) bool {
	return slices.ContainsFunc(l.Reservations, func(r Reservation) bool {
		end, ok := ends[r.ID]
		return ok && r.Volume != nil && r.Volume.OnEnd != end
	})
}

// CheckVolumeEnd rejects another end for the volume of a reservation: a Conflict once the end has begun to handle it.
func (l Lease) CheckVolumeEnd(reservation uuid.UUID, field string) error {
	n := slices.IndexFunc(l.Reservations, func(r Reservation) bool { return r.ID == reservation })
	if n < 0 {
		return apperr.Unknown(field, "reservation", reservation.String())
	}
	r := l.Reservations[n]
	if r.Volume == nil {
		return apperr.InvalidField(field, "is not a reservation of a volume: only those have an on_end of their own")
	}
	mayDetach := l.IsEnding() || l.InstanceOf(r).Status == ReservationEnded // also of a deleted instance
	if r.Status == ReservationEnded || mayDetach && r.ActionID != uuid.Nil {
		refusal := apperr.InvalidField(field, "cannot be changed any more: the end of the lease handles its volume")
		refusal.Code = apperr.Conflict
		return refusal
	}
	return nil
}

// healsBy reports whether all its hosts are healed in that way.
func (l Lease) healsBy(heal Heal) bool {
	return !slices.ContainsFunc(l.Reservations, func(r Reservation) bool {
		return r.Request != nil && cmp.Or(r.Request.Heal, HealAuto) != heal
	})
}

// CheckOnEnd rejects what cannot happen to servers on reserved hosts.
func (l Lease) CheckOnEnd() error {
	if l.OnEnd != OnEndStop && l.OnEnd != OnEndNone || !l.Hosts() {
		return nil
	}
	return apperr.InvalidField("on_end", "cannot be "+string(l.OnEnd)+" with a reservation of hosts: the servers "+
		"would stay on their host, which others get next", texts(OnEndShelve, OnEndSnapshotDelete, OnEndDelete)...)
}
