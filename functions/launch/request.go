package launch

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// request is the body of POST /v1/launch. flavor, image and networks take an id or a unique name. What it says of a
// server holds for each that does not say otherwise itself.
type request struct {
	ID          string           `json:"id"`
	Count       *int             `json:"count"`
	Instances   []override       `json:"instances"`
	OnFailure   domain.OnFailure `json:"on_failure"`
	Start       *bool            `json:"start"`
	GenerateKey bool             `json:"generate_key"`
	Callback    *callbackRequest `json:"callback"`

	// Left out of the hash when they are: what was stored before there were connections stays the same request.
	ConnectionID string `json:"connection_id,omitempty"`
	Reuse        bool   `json:"reuse,omitempty"`

	Name             string            `json:"name"`
	Flavor           string            `json:"flavor"`
	Min              *size             `json:"min"`
	Image            string            `json:"image"`
	Networks         []string          `json:"networks"`
	KeyName          string            `json:"key_name"`
	SecurityGroups   []string          `json:"security_groups"`
	AvailabilityZone string            `json:"availability_zone"`
	UserData         domain.Secret     `json:"user_data"`
	Metadata         map[string]string `json:"metadata"`
}

// override is what one instance has of its own. A field that is absent or null is the order's; an empty key_name,
// availability_zone, user_data, list or object is none.
type override struct {
	ID               string            `json:"id"`
	Name             *string           `json:"name"`
	Flavor           *string           `json:"flavor"`
	Min              *size             `json:"min"`
	Image            *string           `json:"image"`
	Networks         []string          `json:"networks"`
	KeyName          *string           `json:"key_name"`
	SecurityGroups   []string          `json:"security_groups"`
	AvailabilityZone *string           `json:"availability_zone"`
	UserData         *domain.Secret    `json:"user_data"`
	Metadata         map[string]string `json:"metadata"`
}

// size is the least that a server must have.
type size struct {
	VCPUs  int `json:"vcpus"`
	RAMMB  int `json:"ram_mb"`
	DiskGB int `json:"disk_gb"`
}

// hash tells whether two requests ask for the same, however they are written: by what was read from them, with the
// defaults filled in, and without the order's id and the letter case of the other ids. Secrets go in by themselves,
// because they do not marshal.
func (in request) hash() [sha256.Size]byte {
	in.ID, in.ConnectionID = "", strings.ToLower(in.ConnectionID)
	if in.Count == nil && len(in.Instances) == 0 {
		in.Count = new(1)
	}
	if len(in.Instances) > 0 {
		in.Count = nil
	}
	if in.Start == nil {
		in.Start = new(true)
	}
	if in.OnFailure == "" {
		in.OnFailure = domain.Keep
	}
	secrets := []string{in.UserData.Reveal()}
	in.Instances = slices.Clone(in.Instances)
	for n := range in.Instances {
		i := &in.Instances[n]
		i.ID = strings.ToLower(i.ID)
		if i.UserData != nil {
			secrets = append(secrets, strconv.Itoa(n), i.UserData.Reveal())
		}
	}
	if in.Callback != nil && in.Callback.Secret != nil {
		secrets = append(secrets, "callback", in.Callback.Secret.Reveal())
	}
	text, _ := json.Marshal(struct { //nolint:errchkjson // strings, numbers and lists of them cannot fail
		Request request
		Secrets []string
	}{in, secrets})
	return sha256.Sum256(text)
}

// item is one server as the request asks for it: without ids of the cloud's.
type item struct {
	id       uuid.UUID
	name     string
	flavor   lookup.Ref
	min      *size // instead of a flavor
	image    lookup.Ref
	networks []lookup.Ref // none: the project's only network
	spec     domain.LaunchSpec
	userData domain.Secret
	fields   map[string]string // where key_name, security_groups and availability_zone stand in the request
}

// createOrder is a request that was checked.
type createOrder struct {
	id           uuid.UUID
	isNew        bool // the caller gave no id: no order has it yet
	hash         [sha256.Size]byte
	connectionID uuid.UUID // through which it is asked for; zero = with the caller's own token
	spec         domain.OrderSpec
	generateKey  bool
	callback     *callbackRequest
	count        string // the field that says how many servers there are
	items        []item
}

func parse(r *http.Request) (createOrder, error) {
	in, err := httpx.Body[request](r)
	if err != nil {
		return createOrder{}, err
	}
	req := createOrder{id: uuid.Must(uuid.NewV7()), isNew: in.ID == "", hash: in.hash(), generateKey: in.GenerateKey, callback: in.Callback, count: "count"}
	if in.ID != "" {
		if req.id, err = parseID("id", in.ID); err != nil {
			return createOrder{}, err
		}
	}
	if in.ConnectionID != "" {
		if req.connectionID, err = parseID("connection_id", in.ConnectionID); err != nil {
			return createOrder{}, err
		}
	}
	req.spec = domain.OrderSpec{OnFailure: in.OnFailure, Stopped: in.Start != nil && !*in.Start, Reuse: in.Reuse}
	if in.GenerateKey {
		req.spec.GeneratedKey = "cloudfn-" + req.id.String()
	}
	if err := in.check(); err != nil {
		return createOrder{}, err
	}
	overrides := in.Instances
	if len(overrides) > 0 {
		req.count = "instances"
	} else if overrides = make([]override, 1); in.Count != nil {
		overrides = make([]override, *in.Count)
	}
	for n, o := range overrides {
		i, err := in.item(n, len(overrides), o)
		if err != nil {
			return createOrder{}, err
		}
		req.items = append(req.items, i)
	}
	return req, req.checkIDs()
}

func parseID(field, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return id, apperr.Malformed(field, "a UUID", text)
	}
	return id, nil
}

// checkIDs refuses ids that are given twice. The order's counts too: events are told apart by them.
func (req createOrder) checkIDs() error {
	seen := map[uuid.UUID]bool{req.id: true}
	for n, i := range req.items {
		if seen[i.id] {
			return apperr.InvalidField(fmt.Sprintf("instances[%d].id", n), "is given twice")
		}
		seen[i.id] = true
	}
	return nil
}

// check refuses what is wrong with the order as a whole.
func (in request) check() error {
	n := len(in.Instances)
	switch {
	case in.Instances != nil && n == 0 || n > domain.MaxInstances:
		return apperr.InvalidField("instances", fmt.Sprintf("must have 1 to %d entries", domain.MaxInstances))
	case in.Count != nil && n > 0 && *in.Count != n:
		return apperr.InvalidField("count", fmt.Sprintf("must be absent, or the number of instances, which is %d", n))
	case in.Count != nil && (*in.Count < 1 || *in.Count > domain.MaxInstances):
		return apperr.InvalidField("count", fmt.Sprintf("must be 1 to %d", domain.MaxInstances))
	case in.OnFailure != "" && in.OnFailure != domain.Keep && in.OnFailure != domain.Rollback:
		return apperr.Unknown("on_failure", "value", string(in.OnFailure), string(domain.Keep), string(domain.Rollback))
	case in.GenerateKey && in.KeyName != "":
		return apperr.InvalidField("key_name", "does not go with generate_key")
	}
	if in.Name != "" || n == 0 {
		if err := domain.CheckName("name", in.Name, domain.MaxOrderName); err != nil {
			return err
		}
	}
	if in.Reuse {
		return in.checkReuse()
	}
	return nil
}

// inInstance gives the name of a field in the nth of the instances.
func inInstance(n int) func(field string) string {
	return func(field string) string { return fmt.Sprintf("instances[%d].%s", n, field) }
}

// item is the nth server: what it says itself, else what the order says.
func (in request) item(n, count int, o override) (item, error) {
	at := inInstance(n)
	i := item{id: uuid.Must(uuid.NewV7()), fields: map[string]string{}}
	if o.ID != "" {
		var err error
		if i.id, err = parseID(at("id"), o.ID); err != nil {
			return i, err
		}
	}
	i.name = domain.InstanceName(in.Name, n, count)
	if o.Name != nil || in.Name == "" {
		i.name = value(o.Name)
		if err := domain.CheckName(at("name"), i.name, domain.MaxNameLength); err != nil {
			return i, err
		}
	}
	i.flavor, i.min = lookup.Ref{Field: "flavor", Value: in.Flavor}, in.Min
	if o.Flavor != nil || o.Min != nil {
		i.flavor, i.min = lookup.Ref{Field: at("flavor"), Value: value(o.Flavor)}, o.Min
	}
	i.image = lookup.Ref{Field: "image", Value: in.Image}
	if o.Image != nil {
		i.image = lookup.Ref{Field: at("image"), Value: *o.Image}
	}
	networks, field := in.Networks, "networks"
	if o.Networks != nil {
		networks, field = o.Networks, at("networks")
	}
	for k, name := range networks {
		i.networks = append(i.networks, lookup.Ref{Field: fmt.Sprintf("%s[%d]", field, k), Value: name})
	}
	i.rest(in, o, at)
	return i, i.check(in, field)
}

// rest fills in what Nova takes as it is.
func (i *item) rest(in request, o override, at func(string) string) {
	i.spec = domain.LaunchSpec{KeyName: in.KeyName, SecurityGroups: in.SecurityGroups, Zone: in.AvailabilityZone, Metadata: in.Metadata}
	i.userData = in.UserData
	for _, f := range []string{"min", "key_name", "security_groups", "availability_zone", "metadata", "user_data"} {
		i.fields[f] = f
	}
	if o.Min != nil {
		i.fields["min"] = at("min")
	}
	if o.KeyName != nil {
		i.spec.KeyName, i.fields["key_name"] = *o.KeyName, at("key_name")
	}
	if o.SecurityGroups != nil {
		i.spec.SecurityGroups, i.fields["security_groups"] = o.SecurityGroups, at("security_groups")
	}
	if o.AvailabilityZone != nil {
		i.spec.Zone, i.fields["availability_zone"] = *o.AvailabilityZone, at("availability_zone")
	}
	if o.Metadata != nil {
		i.spec.Metadata, i.fields["metadata"] = o.Metadata, at("metadata")
	}
	if o.UserData != nil {
		i.userData, i.fields["user_data"] = *o.UserData, at("user_data")
	}
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
