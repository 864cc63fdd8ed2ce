package launch

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// hash is the domain.RequestHash: without the order's id and the letter case of the other ids.
func (in launchRequest) hash() [sha256.Size]byte {
	in.Options = in.canonical()
	in.ID, in.ConnectionID, in.ReservationID = "", lower(in.ConnectionID), lower(in.ReservationID)
	in.Lease, in.BootVolume, in.Volumes = in.Lease.canonical(), in.BootVolume.canonical(), canonicalVolumes(in.Volumes)
	in.FloatingIP = in.FloatingIP.canonical()
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
	in.Instances = slices.Clone(in.Instances)
	for n := range in.Instances {
		i := &in.Instances[n]
		i.ID, i.BootVolume, i.Volumes = lower(i.ID), i.BootVolume.canonical(), canonicalVolumes(i.Volumes)
	}
	secrets := in.hashedSecrets()
	if in.Callback != nil && in.Callback.Secret != nil {
		secrets = append(secrets, "callback", in.Callback.Secret.Reveal())
	}
	return domain.RequestHash(in, secrets...)
}

func lower(id givenID) givenID { return givenID(strings.ToLower(string(id))) }

// item is one server of a request, before its names are resolved.
type item struct {
	id       uuid.UUID
	name     string
	flavor   lookup.Ref
	min      *MinSize // instead of a flavor
	image    lookup.Ref
	networks []lookup.Ref // none, and no attachments: the project's only network
	// attachments are the networks as they were requested.
	attachments []launchNetwork
	group       lookup.Ref // without a value: none
	// volumeFields are where the request has each of the spec's volumes.
	volumeFields []string
	spec         domain.LaunchSpec
	userData     domain.Secret
	fields       map[string]string // where the request has min, key_name and others that may be an instance's
}

// createOrder is a checked request.
type createOrder struct {
	id            uuid.UUID
	isNew         bool // the caller gave no id: no order has it yet
	hash          [sha256.Size]byte
	connectionID  uuid.UUID // zero = with the caller's own token
	reservationID uuid.UUID // whose hosts the servers are for; zero = any
	lease         *OrderLeaseRequest
	name          string // of a lease that has none
	spec          domain.OrderSpec
	generateKey   bool
	callback      *launchCallback
	count         string // the field that says how many servers there are
	items         []item
}

// order makes the request's order, and reports everything wrong with the request that its types do not. It also
// works on a request that the types have rejected, because both lists of faults are one answer.
func (in launchRequest) order() (createOrder, []error) {
	in, errs := in.withLeaseHints()
	req := createOrder{
		id: in.ID.orNew(), isNew: in.ID == "", hash: in.hash(), generateKey: in.GenerateKey, callback: in.Callback,
		lease: in.Lease,
		spec:  domain.OrderSpec{OnFailure: in.OnFailure, Stopped: in.Start != nil && !*in.Start, Reuse: in.Reuse},
		count: "count",
	}
	if in.ConnectionID != "" {
		req.connectionID = in.ConnectionID.orNew()
	}
	if in.ReservationID != "" {
		req.reservationID = in.ReservationID.orNew()
		req.spec.ReservationID = &req.reservationID
	}
	if in.GenerateKey {
		req.spec.GeneratedKey = "cloudfn-" + req.id.String()
	}
	errs = append(errs, in.check()...)
	overrides := in.Instances[:min(len(in.Instances), domain.MaxInstances)]
	if len(overrides) > 0 {
		req.count = "instances"
	} else {
		overrides = make([]launchInstance, max(1, min(domain.Deref(in.Count), domain.MaxInstances)))
	}
	ids := map[uuid.UUID]bool{req.id: true} // events have the order's, too
	for n, o := range overrides {
		i, wrong := in.item(n, len(overrides), o)
		if errs = append(errs, wrong...); ids[i.id] {
			errs = append(errs, apperr.InvalidField(inInstance(n)("id"), "is given twice"))
		}
		ids[i.id] = true
		req.items = append(req.items, i)
	}
	req.spec.SetsVolumes = slices.ContainsFunc(req.items, func(i item) bool { return i.spec.SetsVolumes() })
	req.spec.SetsGroups = slices.ContainsFunc(req.items, item.hasNetworkGroups)
	req.spec.FloatingIPs = slices.ContainsFunc(req.items, func(i item) bool { return i.spec.FloatingIP != nil })
	req.name = in.leaseName(req.items)
	return req, append(errs, req.checkSpecial()...)
}

// faults collects errors; nil is not one.
type faults []error

func (f *faults) add(err error) {
	if err != nil {
		*f = append(*f, err)
	}
}

// addFields adds an error for each of the fields.
func (f *faults) addFields(fields []apperr.Field) {
	for _, field := range fields {
		f.add(apperr.InvalidField(field.Field, field.Detail, field.Allowed...))
	}
}

// forbid adds an error about a field that must not be given.
func (f *faults) forbid(isGiven bool, field, why string, allowed ...string) {
	if isGiven {
		f.add(apperr.InvalidField(field, why, allowed...))
	}
}

const withGeneratedKey = "cannot be combined with generate_key"

// check reports what is wrong with the order as a whole.
func (in launchRequest) check() []error {
	var wrong faults
	n := len(in.Instances)
	wrong.forbid(in.Count != nil && n > 0 && *in.Count != n, "count",
		fmt.Sprintf("must be absent, or the number of instances, which is %d", n))
	wrong.forbid(in.GenerateKey && in.KeyName != "", "key_name", withGeneratedKey)
	if in.Name != "" || n == 0 {
		wrong.add(domain.CheckName("name", string(in.Name), domain.MaxOrderName))
	}
	own := launchInstance{
		KeyName: &in.KeyName, AvailabilityZone: &in.AvailabilityZone, SecurityGroups: in.SecurityGroups,
		Metadata: in.Metadata, UserData: &in.UserData, UserDataBase64: in.UserDataBase64,
		Options:  in.Options,
		Networks: in.Networks, Flavor: &in.Flavor, Image: &in.Image,
		BootVolume: in.BootVolume, Volumes: in.Volumes, FloatingIP: in.FloatingIP,
	}
	wrong = append(wrong, own.check(func(field string) string { return field })...)
	if in.Reuse {
		in.checkReuse(&wrong)
	}
	in.checkLease(&wrong)
	in.checkOptions(&wrong)
	return wrong
}

const kept = "cannot be combined with reuse: an idle server keeps what it has"

// checkReuse reports what an idle server cannot be given any more.
func (in launchRequest) checkReuse(wrong *faults) {
	const booted = "cannot be combined with reuse: an idle server has booted already"
	wrong.forbid(in.ConnectionID == "", "reuse", "requires connection_id")
	wrong.forbid(in.OnFailure == domain.Rollback, "on_failure",
		"must be keep with reuse: a server that was idle before must not be deleted", string(domain.Keep))
	wrong.forbid(in.ReservationID != "", reservedField,
		"cannot be combined with reuse: an idle server stays on its host")
	wrong.forbid(in.GenerateKey, "generate_key", booted)
	wrong.forbid(in.UserData.Secret != "", "user_data", booted)
	wrong.forbid(domain.Deref(in.UserDataBase64).Secret != "", "user_data_base64", booted)
	wrong.forbid(in.BootVolume != nil, "boot_volume", kept)
	wrong.forbid(len(in.Volumes) > 0, "volumes", kept)
	wrong.forbid(in.FloatingIP.ordered() != nil, "floating_ip", kept)
	for n, o := range in.Instances {
		at := inInstance(n)
		wrong.forbid(o.ID != "", at("id"), "cannot be combined with reuse: an idle instance keeps its id")
		wrong.forbid(domain.Deref(o.UserData).Secret != "", at("user_data"), booted)
		wrong.forbid(domain.Deref(o.UserDataBase64).Secret != "", at("user_data_base64"), booted)
		wrong.forbid(o.BootVolume != nil, at("boot_volume"), kept)
		wrong.forbid(len(o.Volumes) > 0, at("volumes"), kept)
		wrong.forbid(o.FloatingIP.ordered() != nil, at("floating_ip"), kept)
	}
}

// check reports what Nova rejects by its format. at gives a field's path in the request.
func (o launchInstance) check(at func(field string) string) []error {
	var wrong faults
	if key := domain.Deref(o.KeyName); key != "" {
		wrong.add(domain.CheckName(at("key_name"), key, domain.MaxNameLength))
	}
	if zone := domain.Deref(o.AvailabilityZone); zone != "" {
		wrong.add(domain.CheckName(at("availability_zone"), zone, domain.MaxNameLength))
	}
	for k, group := range o.SecurityGroups {
		field := fmt.Sprintf("%s[%d]", at("security_groups"), k)
		wrong.add(domain.CheckName(field, string(group), domain.MaxNameLength))
	}
	wrong.addFields(domain.CheckMetadata(at("metadata"), o.Metadata))
	for field, r := range map[string]*reference{"flavor": o.Flavor, "image": o.Image} {
		wrong.add(domain.CheckStorable(at(field), string(domain.Deref(r))))
	}
	o.checkUserData(&wrong, at)
	for k, network := range o.Networks {
		network.check(&wrong, fmt.Sprintf("%s[%d]", at("networks"), k))
	}
	o.BootVolume.check(&wrong, at("boot_volume"))
	for k, v := range o.Volumes {
		v.check(&wrong, fmt.Sprintf("%s[%d]", at("volumes"), k))
	}
	o.FloatingIP.check(&wrong, at("floating_ip"))
	o.Options.check(&wrong, at)
	return wrong
}

// inInstance gives the path of a field in the nth of the instances.
func inInstance(n int) func(field string) string {
	return func(field string) string { return fmt.Sprintf("instances[%d].%s", n, field) }
}

// item is the nth server: each field of its own, else the order's.
func (in launchRequest) item(n, count int, o launchInstance) (item, []error) {
	at := inInstance(n)
	wrong := faults(o.check(at))
	i := item{
		id: o.ID.orNew(), name: domain.InstanceName(string(in.Name), n, count),
		flavor: in.Flavor.at("flavor"), min: in.Min, image: in.Image.at("image"),
		spec: domain.LaunchSpec{
			KeyName: in.KeyName, SecurityGroups: texts(in.SecurityGroups), Zone: in.AvailabilityZone,
			Metadata: in.Metadata,
		},
		fields: map[string]string{},
	}
	i.setUserData(&in.UserData, in.UserDataBase64)
	i.setUserData(o.UserData, o.UserDataBase64)
	// own reports whether the instance has a field of its own, and keeps where the request has it.
	own := func(field string, isGiven bool) bool {
		if i.fields[field] = field; isGiven {
			i.fields[field] = at(field)
		}
		return isGiven
	}
	if o.Name != nil || in.Name == "" && len(in.Instances) > 0 {
		i.name = string(domain.Deref(o.Name))
		wrong.add(domain.CheckName(at("name"), i.name, domain.MaxNameLength))
	}
	if own("min", o.Min != nil) || o.Flavor != nil {
		i.min = o.Min
	}
	if o.Flavor != nil {
		i.flavor = o.Flavor.at(at("flavor"))
	}
	if o.Image != nil {
		i.image = o.Image.at(at("image"))
	}
	networks := in.Networks
	if own("networks", o.Networks != nil) {
		networks = o.Networks
	}
	i.setNetworks(networks, i.fields["networks"])
	if own("key_name", o.KeyName != nil) {
		i.spec.KeyName = *o.KeyName
		wrong.forbid(in.GenerateKey && *o.KeyName != "", at("key_name"), withGeneratedKey)
	}
	if own("security_groups", o.SecurityGroups != nil) {
		i.spec.SecurityGroups = texts(o.SecurityGroups)
	}
	if own("availability_zone", o.AvailabilityZone != nil) {
		i.spec.Zone = *o.AvailabilityZone
	}
	if o.Metadata != nil {
		i.spec.Metadata = o.Metadata
	}
	i.apply(in.Options, o.Options, own)
	boot, volumes := in.BootVolume, in.Volumes
	if own("boot_volume", o.BootVolume != nil) {
		boot = o.BootVolume
	}
	if own("volumes", o.Volumes != nil) {
		volumes = o.Volumes
	}
	i.setVolumes(boot, volumes)
	if i.spec.FloatingIP = in.FloatingIP.ordered(); own("floating_ip", o.FloatingIP != nil) {
		i.spec.FloatingIP = o.FloatingIP.ordered()
	}
	wrong.forbid(i.min == nil && i.flavor.Value == "", i.flavor.Field, "is missing: it takes a flavor, or min")
	if i.bootsFromImage() {
		wrong.forbid(i.image.Value == "", i.image.Field, "is missing")
	} else {
		wrong.forbid(i.image.Value != "", i.image.Field, "cannot be combined with the source of "+i.volumeFields[0])
	}
	return i, wrong
}

// setUserData takes the text or the bytes, if one of them is given.
func (i *item) setUserData(text *userData, encoded *userDataBase64) {
	if text != nil {
		i.userData = text.Secret
	}
	if encoded != nil {
		i.userData, _ = encoded.decode() // it was checked
	}
}

func texts(references []reference) []string {
	if references == nil {
		return nil
	}
	out := make([]string, len(references))
	for n, r := range references {
		out[n] = string(r)
	}
	return out
}

// Options are fields of a server that Nova gets as they are. It is exported because huma ignores unexported
// embedded structs. The hash omits a field that is absent or null: orders that were stored before keep their hashes.
type Options struct {
	Tags        []string `json:"tags,omitzero" required:"false" nullable:"true" maxItems:"46"`
	Description *string  `json:"description,omitzero" required:"false" maxLength:"255"`
	ConfigDrive *bool    `json:"config_drive,omitzero" required:"false"`
	ServerGroup *string  `json:"server_group,omitzero" required:"false" maxLength:"255"`
	Hints       hints    `json:"scheduler_hints,omitzero" required:"false" nullable:"true"`
}

// The limits of scheduler hints. Nova limits only the size of a request.
const (
	maxHints     = 16
	maxHintList  = 100
	maxHintValue = 1024
)

// hints are Nova's scheduler hints: texts, or lists of texts.
type hints map[string]any

// Schema implements huma.SchemaProvider.
func (hints) Schema(huma.Registry) *huma.Schema {
	most, longest, longestList := maxHints, maxHintValue, maxHintList
	text := &huma.Schema{Type: huma.TypeString, MaxLength: &longest}
	list := &huma.Schema{Type: huma.TypeArray, Items: text, MaxItems: &longestList}
	value := &huma.Schema{OneOf: []*huma.Schema{text, list}}
	for _, s := range []*huma.Schema{text, list, value} {
		s.PrecomputeMessages()
	}
	return &huma.Schema{Type: huma.TypeObject, MaxProperties: &most, AdditionalProperties: value}
}

// groupHint is the hint that server_group stands for.
const groupHint = "group"

// check reports what Nova rejects, and tags that cloudfn finds servers by.
func (o Options) check(wrong *faults, at func(field string) string) {
	wrong.addFields(domain.CheckTags(at("tags"), o.Tags))
	if text := domain.Deref(o.Description); text != "" {
		wrong.add(domain.CheckPrintable(at("description"), text, domain.MaxNameLength))
	}
	if group := domain.Deref(o.ServerGroup); group != "" {
		wrong.add(domain.CheckText(at("server_group"), group, domain.MaxNameLength))
	}
	for name, hint := range o.Hints {
		wrong.add(domain.CheckText(at("scheduler_hints"), name, domain.MaxNameLength))
		wrong.forbid(name == groupHint, at("scheduler_hints."+groupHint), "use server_group instead")
		wrong.addFields(domain.CheckAllStorable(at("scheduler_hints."+name), hint))
	}
}

// given lists the options that have a value.
func (o Options) given() (fields []string) {
	for _, option := range []struct {
		field   string
		isGiven bool
	}{
		{"tags", len(o.Tags) > 0},
		{"description", domain.Deref(o.Description) != ""},
		{"config_drive", domain.Deref(o.ConfigDrive)},
		{"server_group", domain.Deref(o.ServerGroup) != ""},
		{"scheduler_hints", len(o.Hints) > 0},
	} {
		if option.isGiven {
			fields = append(fields, option.field)
		}
	}
	return fields
}

// apply sets the options of a server: its own, else the order's.
func (i *item) apply(order, own Options, ownField func(field string, isGiven bool) bool) {
	if own.Tags == nil {
		own.Tags = order.Tags
	}
	if own.Hints == nil {
		own.Hints = order.Hints
	}
	if own.Description == nil {
		own.Description = order.Description
	}
	if own.ConfigDrive == nil {
		own.ConfigDrive = order.ConfigDrive
	}
	group := order.ServerGroup
	if ownField("server_group", own.ServerGroup != nil) {
		group = own.ServerGroup
	}
	i.spec.Tags, i.spec.Hints = own.Tags, own.Hints
	i.spec.Description, i.spec.ConfigDrive = domain.Deref(own.Description), domain.Deref(own.ConfigDrive)
	i.group = reference(domain.Deref(group)).at(i.fields["server_group"])
}

// canonical leaves out the order's options that say nothing.
func (o Options) canonical() (out Options) {
	for _, field := range o.given() {
		switch field {
		case "tags":
			out.Tags = o.Tags
		case "description":
			out.Description = o.Description
		case "config_drive":
			out.ConfigDrive = o.ConfigDrive
		case "server_group":
			out.ServerGroup = o.ServerGroup
		case "scheduler_hints":
			out.Hints = o.Hints
		}
	}
	return out
}

// checkOptions reports options that cannot be combined with the order. Where servers are placed is for the project's
// own users: a connection has no permission for it.
func (in launchRequest) checkOptions(wrong *faults) {
	check := func(o Options, at func(string) string) {
		for _, field := range o.given() {
			isPlacement := field == "server_group" || field == "scheduler_hints"
			wrong.forbid(in.Reuse && !isPlacement, at(field), kept)
			wrong.forbid(in.ConnectionID != "" && isPlacement, at(field), "cannot be combined with connection_id")
		}
	}
	check(in.Options, func(field string) string { return field })
	for n, o := range in.Instances {
		check(o.Options, inInstance(n))
	}
}
