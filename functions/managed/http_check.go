package managed

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// specTypes are the types of the kinds' specs. Their tags describe them, and check them.
var specTypes = map[domain.Kind]reflect.Type{
	domain.KindMachine:    reflect.TypeFor[MachineSpec](),
	domain.KindDeployment: reflect.TypeFor[DeploymentSpec](),
	domain.KindVolume:     reflect.TypeFor[VolumeSpec](),
	domain.KindImage:      reflect.TypeFor[ImageSpec](),
	domain.KindBalancer:   reflect.TypeFor[BalancerSpec](),
	domain.KindSecret:     reflect.TypeFor[SecretSpec](),
	domain.KindConfigmap:  reflect.TypeFor[ConfigmapSpec](),
}

// secretField is the field of a spec that is sealed; "" = none.
func secretField(kind domain.Kind) string {
	switch kind {
	case domain.KindMachine, domain.KindDeployment:
		return userData
	case domain.KindSecret:
		return "payload"
	default:
		return ""
	}
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
	if s, isVolume := typed.(*VolumeSpec); isVolume {
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
	if !isSecret || c.secret == "" || (domain.SecretSpec{ContentType: s.ContentType}).IsText() {
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
	if d, ok := typed.(*DeploymentSpec); ok && given["count"] == nil {
		d.MaxUnavailable = nil // the resource has the count
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
