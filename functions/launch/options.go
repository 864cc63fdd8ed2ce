package launch

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
	if text := value(o.Description); text != "" {
		wrong.add(domain.CheckPrintable(at("description"), text, domain.MaxNameLength))
	}
	if group := value(o.ServerGroup); group != "" {
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
		{"description", value(o.Description) != ""},
		{"config_drive", value(o.ConfigDrive)},
		{"server_group", value(o.ServerGroup) != ""},
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
	i.spec.Description, i.spec.ConfigDrive = value(own.Description), value(own.ConfigDrive)
	i.group = reference(value(group)).at(i.fields["server_group"])
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
	const kept = "cannot be combined with reuse: an idle server keeps what it has"
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
