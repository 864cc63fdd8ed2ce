package httpx

import (
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Schemas are the schemas of types that are checked by Check, and not as a whole body.
func Schemas() huma.Registry {
	settings()
	return huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
}

// Check finds what of a decoded JSON value of a field does not fit a schema of the registry, as for a body.
func Check(registry huma.Registry, schema *huma.Schema, field string, value any) (faults []apperr.Field) {
	at, found := huma.NewPathBuffer([]byte{}, 0), huma.ValidateResult{}
	at.Push("body")
	at.Push(field)
	markKeys(value)
	huma.Validate(registry, schema, at, huma.ModeWriteToServer, value, &found)
	for _, err := range found.Errors {
		for _, fault := range fieldsOf(err) {
			if fault.Detail == validation.MsgUnexpectedProperty {
				name, known := fieldsBeside(registry, schema, strings.TrimPrefix(fault.Field, field+"."))
				fault.Detail, fault.Allowed = fault.Detail+"; "+apperr.Suggestion(name, known), known
			}
			faults = append(faults, fault)
		}
	}
	return faults
}

// fieldsBeside are the fields that the object of a path has in a schema, and the last name of the path.
func fieldsBeside(registry huma.Registry, schema *huma.Schema, path string) (name string, known []string) {
	for {
		for schema != nil && schema.Ref != "" {
			schema = registry.SchemaFromRef(schema.Ref)
		}
		if schema == nil {
			return path, nil
		}
		first, rest, isDeeper := strings.Cut(path, ".")
		if !isDeeper {
			return path, slices.Sorted(maps.Keys(schema.Properties))
		}
		first, _, isEntry := strings.Cut(first, "[")
		path, schema = rest, schema.Properties[first]
		if isEntry && schema != nil {
			schema = schema.Items
		}
	}
}

// Invalid is the error of all faults together.
func Invalid(faults ...apperr.Field) error { return invalid(slices.Clone(faults)) }
