package httpx

import (
	"slices"

	"github.com/danielgtaylor/huma/v2"

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
		faults = append(faults, fieldsOf(err)...)
	}
	return faults
}

// Invalid is the error of all faults together.
func Invalid(faults ...apperr.Field) error { return invalid(slices.Clone(faults)) }
