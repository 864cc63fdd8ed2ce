package managed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	engine "github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// specTypes are the types of the kinds' specs. Their tags describe them, and check them.
var specTypes = map[domain.Kind]reflect.Type{
	domain.KindMachine:       reflect.TypeFor[MachineSpec](),
	domain.KindDeployment:    reflect.TypeFor[DeploymentSpec](),
	domain.KindPod:           reflect.TypeFor[PodSpec](),
	domain.KindPodDeployment: reflect.TypeFor[PodDeploymentSpec](),
	domain.KindVolume:        reflect.TypeFor[domain.VolumeSpec](),
	domain.KindImage:         reflect.TypeFor[domain.ImageSpec](),
	domain.KindBalancer:      reflect.TypeFor[domain.BalancerSpec](),
	domain.KindSecret:        reflect.TypeFor[SecretSpec](),
	domain.KindConfigmap:     reflect.TypeFor[domain.ConfigmapSpec](),
}

// secretField is the field of a spec that is sealed; "" = none.
func secretField(kind domain.Kind) string {
	switch {
	case kind.IsServer():
		return userData
	case kind == domain.KindSecret:
		return "payload"
	}
	return ""
}

// schemas are the schemas of the specs, by kind.
var schemas = sync.OnceValues(func() (huma.Registry, map[domain.Kind]*huma.Schema) {
	registry, all := httpx.Schemas(), map[domain.Kind]*huma.Schema{}
	for kind, t := range specTypes {
		all[kind] = registry.Schema(t, false, "")
	}
	return registry, all
})

// checkedSpec is a spec without its secret field.
type checkedSpec struct {
	spec      json.RawMessage
	secret    string
	hasSecret bool // the field is given; "" removes what is stored
}

// fields are the fields of a spec.
func fields(spec json.RawMessage) map[string]any {
	all := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(spec))
	decoder.UseNumber()
	_ = decoder.Decode(&all) // huma has read it before: it is an object
	return all
}

// checkSpec rejects a spec that does not fit its kind, with all its faults. A field that is null counts as absent, and
// removes a secret.
func checkSpec(kind domain.Kind, given map[string]any) (checked checkedSpec, err error) {
	for name, value := range given {
		if value != nil {
			continue
		}
		if delete(given, name); slices.Contains(secretNames(kind), name) {
			checked.hasSecret = true
		}
	}
	faults := faultsOf(kind, given)
	if len(faults) > 0 {
		return checked, httpx.Invalid(faults...)
	}
	if err := checked.takeSecret(kind, given); err != nil {
		return checked, err
	}
	text, err := json.Marshal(given)
	if err != nil {
		return checked, err
	}
	typed := reflect.New(specTypes[kind]).Interface()
	if err := json.Unmarshal(text, typed); err != nil {
		return checked, apperr.InvalidField("spec", "has a number that is out of range")
	}
	if faults := append(meaning(typed), checked.payloadFaults(typed)...); len(faults) > 0 {
		return checked, httpx.Invalid(faults...)
	}
	if err := checked.checkPodUserData(text); err != nil {
		return checked, err
	}
	if s, isVolume := typed.(*domain.VolumeSpec); isVolume {
		s.Description = domain.Stripped(s.Description) // as Cinder keeps it
	}
	checked.spec, err = json.Marshal(typed)
	return checked, err
}

// secretNames are the fields of a spec that give its secret field a value.
func secretNames(kind domain.Kind) []string {
	switch name := secretField(kind); name {
	case "":
		return nil
	case userData:
		return []string{userData, userDataBase64}
	default:
		return []string{name}
	}
}

const (
	userData       = "user_data"
	userDataBase64 = "user_data_base64" // user_data that need not be text
)

// takeSecret moves the secret of a spec into checked.
func (c *checkedSpec) takeSecret(kind domain.Kind, given map[string]any) error {
	field := ""
	for _, name := range secretNames(kind) {
		text, isGiven := given[name].(string)
		if !isGiven {
			continue
		}
		if field != "" {
			return apperr.InvalidField("spec."+name, "cannot be combined with "+field)
		}
		field, c.secret, c.hasSecret = name, text, true
		delete(given, name)
	}
	if field == userDataBase64 {
		data, err := base64.StdEncoding.DecodeString(c.secret) // it skips line breaks, which the command base64 makes
		if err != nil {
			return apperr.InvalidField("spec."+field, "must be base64 with padding")
		}
		c.secret = string(data)
	}
	if secretField(kind) == userData && len(c.secret) > domain.MaxUserData {
		return apperr.InvalidField("spec."+field, fmt.Sprintf("must have at most %d bytes", domain.MaxUserData))
	}
	return nil
}

// payloadFaults are the faults of the payload of a secret that is not text: Barbican skips what is no base64.
func (c *checkedSpec) payloadFaults(typed any) []apperr.Field {
	s, isSecret := typed.(*SecretSpec)
	if !isSecret || c.secret == "" || s.IsText() {
		return nil
	}
	if _, err := base64.StdEncoding.DecodeString(c.secret); err != nil {
		const detail = "must be base64 with padding, because its content_type is not text"
		return []apperr.Field{{Field: "spec.payload", Detail: detail}}
	}
	return nil
}

// faultsOf are the faults that the schema of the kind finds.
func faultsOf(kind domain.Kind, given map[string]any) []apperr.Field {
	text, err := json.Marshal(given)
	var plain any
	if err == nil {
		err = json.Unmarshal(text, &plain) // Check changes it, and knows no json.Number
	}
	if err != nil {
		return []apperr.Field{{Field: "spec", Detail: "cannot be read"}}
	}
	registry, all := schemas()
	faults := httpx.Check(registry, all[kind], "spec", plain)
	size := 0
	for name, value := range given {
		if slices.Contains(longFields, name) { // OpenStack gets these in base64
			continue
		}
		faults = append(faults, domain.CheckAllStorable("spec."+name, value)...)
		if text, err := json.Marshal(value); err == nil {
			size += len(text)
		}
	}
	if size > maxSpec {
		faults = append(faults, apperr.Field{Field: "spec", Detail: fmt.Sprintf(
			"has %d bytes: must have at most %d, not counting %s", size, maxSpec, strings.Join(longFields, ", "))})
	}
	return faults
}

// maxSpec bounds a spec, which is kept for each revision, but for longFields, which have limits of their own.
const maxSpec = 64 << 10

var longFields = []string{"content", "data", "payload", userData, userDataBase64}

// templateOf checks the spec of a flavor: what it has must fit the kind, and no secret may be in it.
func templateOf(kind domain.Kind, spec Spec) ([]byte, error) {
	given := fields([]byte(spec))
	faults := slices.DeleteFunc(faultsOf(kind, given), func(f apperr.Field) bool {
		return strings.Count(f.Field, ".") == 1 && f.Detail == "is missing"
	})
	for _, name := range secretNames(kind) {
		if _, hasSecret := given[name]; hasSecret {
			faults = append(faults, apperr.Field{
				Field:  "spec." + name,
				Detail: "is a secret, and cannot be part of a template: give it with the resource",
			})
		}
	}
	typed := reflect.New(specTypes[kind]).Interface()
	if err := json.Unmarshal(spec, typed); len(faults) == 0 && err != nil {
		faults = append(faults, apperr.Field{Field: "spec", Detail: "has a number that is out of range"})
	}
	switch d := typed.(type) { // the resource has the count
	case *DeploymentSpec:
		d.MaxUnavailable = bounded(d.DeploymentSpec, given)
	case *PodDeploymentSpec:
		d.MaxUnavailable = bounded(d.DeploymentSpec, given)
	}
	for _, f := range meaning(typed) {
		name, _, _ := strings.Cut(strings.TrimPrefix(f.Field, "spec."), ".")
		if name, _, _ = strings.Cut(name, "["); given[name] != nil { // the resource gives the others
			faults = append(faults, f)
		}
	}
	if len(faults) > 0 {
		return nil, httpx.Invalid(faults...)
	}
	return spec.MarshalJSON()
}

// bounded is the max_unavailable of a template as far as it is to be compared with a count.
func bounded(d domain.DeploymentSpec, given map[string]any) *int {
	if given["count"] == nil {
		return nil
	}
	return d.MaxUnavailable
}

// meaning are the faults that no schema can describe.
func meaning(spec any) (faults []apperr.Field) {
	fault := func(field, detail string) {
		faults = append(faults, apperr.Field{Field: "spec." + field, Detail: detail})
	}
	switch s := spec.(type) {
	case *MachineSpec:
		checkMachine(s.MachineSpec, fault)
	case *DeploymentSpec:
		checkDeployment(s.DeploymentSpec, domain.KindMachine, fault)
	case *PodSpec:
		checkMachine(s.MachineSpec, fault)
		checkPod(s.PodTemplate, &s.MachineSpec, fault)
	case *PodDeploymentSpec:
		checkDeployment(s.DeploymentSpec, domain.KindPod, fault)
		checkPod(s.PodTemplate, &s.MachineSpec, fault)
	case *domain.VolumeSpec:
		checkTexts("metadata", s.Metadata, fault)
	case *domain.ImageSpec:
		checkImage(*s, fault)
	case *domain.BalancerSpec:
		checkBalancer(*s, fault)
	case *domain.ConfigmapSpec:
		checkFiles(s.Data, fault)
	}
	return faults
}

func checkDeployment(s domain.DeploymentSpec, one domain.Kind, fault func(field, detail string)) {
	checkMachine(s.MachineSpec, fault)
	if s.MaxUnavailable != nil && *s.MaxUnavailable > s.Count {
		fault("max_unavailable", fmt.Sprintf("must be at most the count, %d", s.Count))
	}
	if len(s.Volumes) > 0 {
		fault("volumes", "cannot be combined with this kind, because a volume is attached to one server: declare a "+
			string(one))
	}
}

func checkMachine(s domain.MachineSpec, fault func(field, detail string)) {
	checkTexts("metadata", s.Metadata, fault)
	for _, f := range slices.Concat(domain.CheckMetadata("metadata", s.Metadata), domain.CheckTags("tags", s.Tags)) {
		fault(f.Field, f.Detail)
	}
	for n, tag := range s.Tags {
		if strings.ContainsAny(tag, "?#%") { // a tag that is added is a part of the path
			fault(fmt.Sprintf("tags[%d]", n), "must have none of ? # %")
		}
	}
	checkObjects("networks", s.Networks, fault)
	checkObjects("security_groups", s.SecurityGroups, fault)
	checkNames("volumes", s.Volumes, fault)
	checkNames("configmaps", s.Configmaps, fault)
}

// checkNames checks names of managed resources.
func checkNames(field string, names []string, fault func(field, detail string)) {
	for n, name := range names {
		if !nameForm.MatchString(name) {
			fault(fmt.Sprintf("%s[%d]", field, n), nameRule)
		}
	}
}

// checkObjects checks ids, names and tags of what OpenStack has.
func checkObjects(field string, texts []string, fault func(field, detail string)) {
	for n, text := range texts {
		if err := domain.CheckText(fmt.Sprintf("%s[%d]", field, n), text, domain.MaxNameLength); err != nil {
			f := apperr.As(err).Fields[0]
			fault(f.Field, f.Detail)
		}
	}
}

// checkTexts checks values as Nova, Cinder and Glance do.
func checkTexts(field string, texts map[string]string, fault func(field, detail string)) {
	if len(texts) > domain.MaxMetadata {
		fault(field, fmt.Sprintf("must have %d entries or fewer", domain.MaxMetadata))
	}
	for key, value := range texts {
		if len(key) == 0 || len(key) > domain.MaxNameLength || len([]rune(value)) > domain.MaxNameLength {
			fault(field, fmt.Sprintf("must have keys and values of at most %d characters", domain.MaxNameLength))
			return
		}
	}
}

func checkImage(s domain.ImageSpec, fault func(field, detail string)) {
	checkTexts("properties", s.Properties, fault)
	checkObjects("tags", s.Tags, fault)
	keys := slices.Sorted(maps.Keys(s.Properties))
	for n, key := range keys {
		if same := domain.EqualInTables(key, keys[:n]); same >= 0 {
			fault("properties."+key, fmt.Sprintf("is the same as %q for Glance, which ignores case", keys[same]))
		}
	}
	switch u, err := url.Parse(s.SourceURL); {
	case (s.SourceURL == "") == (s.Content == ""):
		fault("source_url", "or content is needed, and not both")
	case s.SourceURL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https"):
		fault("source_url", "must be an http or https URL")
	}
	if _, err := base64.StdEncoding.DecodeString(s.Content); err != nil {
		fault("content", "must be base64")
	}
}

func checkBalancer(s domain.BalancerSpec, fault func(field, detail string)) {
	if _, err := netip.ParseAddr(s.Address); s.Address != "" && err != nil {
		fault("address", "must be an IP address")
	}
	ports := map[string]int{}
	for n, l := range s.Listeners {
		field := func(name string) string { return fmt.Sprintf("listeners[%d].%s", n, name) }
		port := fmt.Sprintf("%v/%d", l.Protocol == "UDP", l.Port) // a UDP port may have the number of a TCP port
		if first, isTaken := ports[port]; isTaken {
			fault(field("port"), fmt.Sprintf("is the one of listeners[%d], too", first))
		} else {
			ports[port] = n
		}
		for name, of := range map[string]string{"deployment": l.Deployment, "pods": l.Pods} {
			if of != "" && !nameForm.MatchString(of) {
				fault(field(name), nameRule)
			}
		}
		if l.Deployment == "" && l.Pods == "" && len(l.Machines) == 0 && len(l.Addresses) == 0 {
			fault(field("deployment"), "is missing: give it, pods, machines or addresses")
		}
		checkNames(field("machines"), l.Machines, fault)
		for m, address := range l.Addresses {
			if _, err := netip.ParseAddr(address); err != nil {
				fault(fmt.Sprintf("%s[%d]", field("addresses"), m), "must be an IP address")
			}
		}
	}
}

// checkFiles checks that a server can have the files: they are part of its user_data, in base64.
func checkFiles(files map[string]string, fault func(field, detail string)) {
	for name := range files {
		if name == "" || len(name) > domain.MaxNameLength {
			fault("data", fmt.Sprintf("must have file names of 1 to %d characters", domain.MaxNameLength))
		}
	}
	longest := strings.Repeat("x", maxName) // the resource's name is a part of their paths
	if _, err := engine.WithFiles("", engine.Files(longest, domain.ConfigmapSpec{Data: files})); err != nil {
		fault("data", fmt.Sprintf("does not fit in a server's user_data, which has at most %d bytes and holds the "+
			"files in base64", domain.MaxUserData))
	}
}

// checkMove rejects another region: the objects of a resource stay where they were made. To name the region of this
// process is no change.
func checkMove(ctx context.Context, cloud *openstack.Session, before domain.Managed, next domain.Schedule) error {
	from, to := before.Schedule.Region, next.Region
	if before.ID == uuid.Nil || from == to {
		return nil
	}
	_, own, err := regions(ctx, cloud)
	if err != nil || cmp.Or(from, own) == cmp.Or(to, own) {
		return err
	}
	return apperr.InvalidField("schedule.region", fmt.Sprintf(
		"must stay %q, because a resource cannot move to another region: declare another one there, and delete "+
			"this one",
		cmp.Or(from, own)))
}

// checkSchedule rejects what has no meaning for a kind.
func checkSchedule(kind domain.Kind, rule domain.Schedule) error {
	isServer := kind.IsServer()
	var faults []apperr.Field
	fault := func(name, detail string) {
		faults = append(faults, apperr.Field{Field: "schedule." + name, Detail: detail})
	}
	if rule.Zone != "" && !isServer && kind != domain.KindVolume {
		fault("zone", "cannot be combined with this kind: only servers and volumes are in a zone")
	}
	if len(rule.Labels) > 0 && !isServer {
		fault("labels", "cannot be combined with this kind: only servers run on nodes")
	}
	if rule.Affinity != "" && !kind.IsDeployment() {
		fault("affinity", "cannot be combined with this kind: only a deployment has several servers")
	}
	if len(faults) == 0 {
		return nil
	}
	return httpx.Invalid(faults...)
}

// checkTransition rejects a change of a volume that would lose its data.
func checkTransition(before domain.Managed, spec json.RawMessage, rule domain.Schedule) error {
	if before.Kind != domain.KindVolume {
		return nil
	}
	var old, next domain.VolumeSpec
	_, _ = json.Unmarshal(before.Spec, &old), json.Unmarshal(spec, &next) // both were checked
	var faults []apperr.Field
	if next.SizeGB < old.SizeGB {
		faults = append(faults, apperr.Field{
			Field: "spec.size_gb", Detail: fmt.Sprintf("must be %d or more: a volume cannot shrink", old.SizeGB),
		})
	}
	lost := func(field string) {
		faults = append(faults, apperr.Field{
			Field: field, Detail: "cannot change, because the data would be lost: declare another volume",
		})
	}
	if next.Image != old.Image {
		lost("spec.image")
	}
	if zone := next.ZoneIn(rule); zone != old.ZoneIn(before.Schedule) {
		field := "spec.zone"
		if next.Zone == old.Zone {
			field = "schedule.zone"
		}
		lost(field)
	}
	if len(faults) == 0 {
		return nil
	}
	return httpx.Invalid(faults...)
}
