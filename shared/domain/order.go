package domain

import (
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// OrderStatus is how far an order has come.
type OrderStatus string

// The statuses of an order. Only running is not final.
const (
	OrderRunning    OrderStatus = "running"
	OrderDone       OrderStatus = "done"
	OrderPartial    OrderStatus = "partial" // some instances could not be had
	OrderFailed     OrderStatus = "failed"  // none could be had
	OrderRolledBack OrderStatus = "rolled_back"
)

// Order is one launch request of 1..N instances.
type Order struct {
	ID         uuid.UUID
	ProjectID  string
	DomainID   string
	UserID     string
	BodySHA256 []byte // of the canonical request, to tell a repeat from another order under the same id
	Spec       LaunchSpec
	Status     OrderStatus
	CreatedAt  time.Time
	Instances  []Instance
}

// Claim is a copy's right to work on an order. It ends by itself, so that a copy that died blocks nobody.
type Claim struct {
	ID    uuid.UUID
	Held  bool // false: somebody else holds it, or there is nothing left to do
	Fresh bool // the order was stored together with the claim, so nobody has asked Nova for its servers yet
}

// ErrFenced says that the claim has passed to another copy: stop working at once.
var ErrFenced = errors.New("the claim has passed to another copy")

// Evaluate is the status that follows from the instances. A final status stays: what happens to a
// server later is no longer the order's business.
func (o Order) Evaluate() OrderStatus {
	if o.Status != OrderRunning && o.Status != "" {
		return o.Status
	}
	failed := 0
	for _, i := range o.Instances {
		if !i.Settled() {
			return OrderRunning
		}
		if i.State == InstanceError {
			failed++
		}
	}
	switch failed {
	case 0:
		return OrderDone
	case len(o.Instances):
		return OrderFailed
	}
	return OrderPartial
}

// Undecided counts the instances that Nova has neither accepted nor refused.
func (o Order) Undecided() int {
	n := 0
	for _, i := range o.Instances {
		if !i.Decided() {
			n++
		}
	}
	return n
}

// LaunchSpec is what an order asks for, with every name resolved to an id. It is kept with the order,
// so it has no place for user_data or any other secret.
type LaunchSpec struct {
	Name           string            `json:"name"`
	Count          int               `json:"count"`
	FlavorID       string            `json:"flavor_id"`
	VCPUs          int               `json:"vcpus"` // the flavor's, for the quota
	RAMMB          int               `json:"ram_mb"`
	ImageID        string            `json:"image_id"`
	NetworkIDs     []string          `json:"network_ids"`
	KeyName        string            `json:"key_name,omitempty"`
	SecurityGroups []string          `json:"security_groups,omitempty"`
	Zone           string            `json:"zone,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
}

// The limits of an order. Nova's own are 255 characters for names and metadata, 128 pairs by quota, and
// 65535 bytes of base64 for user_data.
const (
	MaxInstances    = 100
	MaxNameLength   = 255
	MaxUserData     = 65535 / 4 * 3
	MaxNetworks     = 16
	MaxMetadata     = 128
	maxNameOfServer = MaxNameLength - len("-100")
)

// InstanceName is the name of the nth (from 0) server of the order: the name itself for a single one,
// else with its number behind it, as Nova does for several.
func (s LaunchSpec) InstanceName(n int) string {
	if s.Count == 1 {
		return s.Name
	}
	return fmt.Sprintf("%s-%d", s.Name, n+1)
}

// CheckText refuses text that Nova, Postgres or a log could not carry: empty, too long, or with control
// characters in it.
func CheckText(field, value string, longest int) error {
	if value == "" {
		return apperr.InvalidField(field, "must not be empty")
	}
	if utf8.RuneCountInString(value) > longest {
		return apperr.InvalidField(field, fmt.Sprintf("must have at most %d characters", longest))
	}
	for _, r := range value {
		if unicode.IsControl(r) {
			return apperr.InvalidField(field, "must not contain control characters")
		}
	}
	return nil
}

// Check refuses what no cloud would take, before anything is stored.
func (s LaunchSpec) Check() error {
	if err := CheckText("name", s.Name, maxNameOfServer); err != nil {
		return err
	}
	if s.Count < 1 || s.Count > MaxInstances {
		return apperr.InvalidField("count", fmt.Sprintf("must be 1 to %d", MaxInstances))
	}
	if len(s.Metadata) > MaxMetadata {
		return apperr.InvalidField("metadata", fmt.Sprintf("must have at most %d entries", MaxMetadata))
	}
	for k, v := range s.Metadata {
		if err := CheckText("metadata", k, MaxNameLength); err != nil {
			return err
		}
		if utf8.RuneCountInString(v) > MaxNameLength {
			return apperr.InvalidField("metadata."+k, fmt.Sprintf("must have at most %d characters", MaxNameLength))
		}
	}
	for _, g := range s.SecurityGroups {
		if err := CheckText("security_groups", g, MaxNameLength); err != nil {
			return err
		}
	}
	return nil
}
