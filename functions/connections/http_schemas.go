package connections

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// describe says what the types' tags cannot.
func describe(api huma.API) {
	httpx.DescribeAs[domain.Permission, permissionSchema](api)
	httpx.DescribeAs[domain.ConnectionKind, kindSchema](api)
	httpx.DescribeAs[domain.ConnectionStatus, statusSchema](api)
	httpx.DescribeAs[domain.ConnectionOf, ofSchema](api)
	httpx.DescribeAs[domain.Revocation, revocationSchema](api)
	httpx.DescribeAs[domain.RequestStatus, requestStatusSchema](api)
	httpx.DescribeAs[domain.Grantee, granteeSchema](api)
	for _, t := range []reflect.Type{reflect.TypeFor[QuotaRequest](), reflect.TypeFor[LimitsRequest]()} {
		schemas := api.OpenAPI().Components.Schemas
		// a tag makes only text and numbers nullable
		schemas.SchemaFromRef(schemas.Schema(t, true, "").Ref).Nullable = true
	}
}

func enum(r huma.Registry, name string, values ...string) *huma.Schema {
	list := make([]any, len(values))
	for i, value := range values {
		list[i] = value
	}
	return httpx.SharedSchema(r, name, huma.Schema{Type: huma.TypeString, Enum: list})
}

type permissionSchema struct{}

// Schema implements huma.SchemaProvider.
func (permissionSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "Permission", domain.Permissions()...)
}

type kindSchema struct{}

// Schema implements huma.SchemaProvider.
func (kindSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "ConnectionKind", string(domain.TrustConnection), string(domain.CredentialConnection))
}

type statusSchema struct{}

// Schema implements huma.SchemaProvider.
func (statusSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "ConnectionStatus", domain.ConnectionStatuses()...)
}

type ofSchema struct{}

// Schema implements huma.SchemaProvider.
func (ofSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "ConnectionOf", domain.ConnectionsOf()...)
}

type revocationSchema struct{}

// Schema implements huma.SchemaProvider.
func (revocationSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "Revocation", string(domain.RevocationPending), string(domain.RevocationDone))
}

type requestStatusSchema struct{}

// Schema implements huma.SchemaProvider.
func (requestStatusSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "ConnectionRequestStatus", domain.RequestStatuses()...)
}

type granteeSchema struct{}

// Schema implements huma.SchemaProvider.
func (granteeSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "Grantee", string(domain.GranteeUser), string(domain.GranteeProject))
}

// maxText bounds the connection's name, and ids and names of Keystone.
const maxText = 255

// plainText is a name or an id: text without control characters.
type plainText string

// Schema implements huma.SchemaProvider.
func (plainText) Schema(huma.Registry) *huma.Schema {
	most := maxText
	return &huma.Schema{
		Type: huma.TypeString, MaxLength: &most, Pattern: `^\P{Cc}*$`,
		PatternDescription: "text without control characters",
	}
}

// displayText is plainText by which people decide. So it may not hold characters that make it look like another text,
// either.
type displayText string

// Schema implements huma.SchemaProvider.
func (displayText) Schema(r huma.Registry) *huma.Schema { return plainText("").Schema(r) }

// Resolve implements huma.ResolverWithPath.
func (t *displayText) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	isBidi := func(c rune) bool { return unicode.Is(unicode.Bidi_Control, c) }
	if n := strings.IndexFunc(string(*t), isBidi); n >= 0 {
		detail := fmt.Sprintf("has a character at byte %d that changes the direction of the text: leave it out", n)
		return []error{&huma.ErrorDetail{Location: at.String(), Message: detail}}
	}
	return nil
}

// duration is how long a connection lasts, or may be idle.
type duration string

const (
	minDuration = time.Hour
	maxDuration = 8784 * time.Hour // a leap year
)

// value is zero for a wrong duration, and an absent one.
func (d duration) value() time.Duration {
	value, err := time.ParseDuration(string(d))
	if err != nil || value < minDuration || value > maxDuration {
		return 0
	}
	return value
}

// Resolve implements huma.ResolverWithPath.
func (d *duration) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	if d.value() == 0 {
		return []error{&huma.ErrorDetail{Location: at.String(), Message: mustBeDuration}}
	}
	return nil
}

const mustBeDuration = "must be 1h to 8784h, such as 24h or 1h30m"
