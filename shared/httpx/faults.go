package httpx

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// settings makes huma as strict as the API promises, and has its errors be ours.
var settings = sync.OnceFunc(func() {
	huma.ValidateStrictCasing = true
	huma.DefaultArrayNullable = false
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		c := of(ctx.Context())
		c.err = c.outcome(status, msg, errs)
		return dropped{}
	}
	// Some of huma's texts end with a parser's error, which repeats the value. These have no place for it.
	//nolint:reassign // huma is set up so
	huma.ErrorFormatter = func(format string, args ...any) string {
		if !strings.Contains(format, "%") {
			return format
		}
		return fmt.Sprintf(format, args...)
	}
	setTexts()
})

const (
	mustBeOneOf = "must be one of "
	isMissing   = " is missing"
)

func setTexts() {
	validation.MsgUnexpectedProperty = "is not a field of this request"
	validation.MsgExpectedRequiredProperty = "%s" + isMissing
	validation.MsgExpectedBoolean = "must be true or false"
	validation.MsgExpectedNumber = "must be a number"
	validation.MsgExpectedInteger = "must be a whole number"
	validation.MsgExpectedString = "must be a string"
	validation.MsgExpectedArray = "must be a list"
	validation.MsgExpectedObject = "must be an object"
	validation.MsgExpectedOneOf = mustBeOneOf + "%s"
	validation.MsgExpectedMinimumNumber = "must be %v or more"
	validation.MsgExpectedMaximumNumber = "must be %v or less"
	validation.MsgExpectedMinLength = "must have %d characters or more"
	validation.MsgExpectedMaxLength = "must have %d characters or fewer"
	validation.MsgExpectedBePattern = "must be %s"
	validation.MsgExpectedMatchPattern = "must match %s"
	validation.MsgExpectedMinItems = "must have %d entries or more"
	validation.MsgExpectedMaxItems = "must have %d entries or fewer"
	validation.MsgExpectedMinProperties = "must have %d fields or more"
	validation.MsgExpectedMaxProperties = "must have %d fields or fewer"
	validation.MsgExpectedArrayItemsUnique = "has an entry twice"
	validation.MsgExpectedRFC4122UUID = "must be a UUID"
	validation.MsgExpectedRFC3986URI = "must be a URL"
	validation.MsgExpectedRFC3339DateTime = "must be a time such as 2026-01-02T03:04:05Z"
	validation.MsgExpectedRFC5322Email = "must be an e-mail address"
	validation.MsgExpectedDuration = "must be a duration such as 90m"
	validation.MsgExpectedRegexp = "must be a regular expression"
}

// dropped is what huma makes of an error, which nobody sees.
type dropped struct{}

// Error implements huma.StatusError.
func (dropped) Error() string { return "" }

// GetStatus implements huma.StatusError.
func (dropped) GetStatus() int { return http.StatusBadRequest }

// outcome is the error that the caller gets for one of huma's. A handler's own error comes with status 500.
func (c *call) outcome(status int, msg string, errs []error) error {
	if status == http.StatusInternalServerError && len(errs) > 0 {
		return errs[0]
	}
	if err := c.rejected(errs); err != nil {
		return err
	}
	return apperr.New(apperr.Invalid, "the body is missing: %s", msg)
}

// rejected is why the request is not served, with what huma found wrong with it; nil if all is well. An id in the path
// that is not a UUID goes first, then a body that could not be read.
func (c *call) rejected(errs []error) error {
	faults, isRead := c.faults, c.unread == nil
	for _, err := range errs {
		d, ok := errors.AsType[*huma.ErrorDetail](err)
		if ok && strings.HasPrefix(d.Location, "path.") {
			return apperr.New(apperr.NotFound, "%s in the path is not a UUID", strings.TrimPrefix(d.Location, "path."))
		}
		found := fieldsOf(err)
		switch {
		case !ok && !isRead, ok && d.Location == "body" && c.unread != nil:
			continue // it says nothing that the fault of the body does not
		case !ok: // a type's own check, which did not see what huma has rejected
			found = slices.DeleteFunc(slices.Clone(found), func(f apperr.Field) bool {
				return hasFault(faults, f.Field)
			})
		case d.Location == "body" && d.Message == validation.MsgExpectedObject:
			isRead = false
		}
		faults = append(faults, found...)
	}
	switch {
	case c.unread != nil && apperr.CodeOf(c.unread) != apperr.Invalid:
		return c.unread
	case c.unread != nil:
		faults = append(faults, apperr.Field{Detail: apperr.As(c.unread).Message})
	case len(faults) == 0:
		return nil
	}
	return invalid(faults)
}

func hasFault(faults []apperr.Field, field string) bool {
	return field != "" && slices.ContainsFunc(faults, func(f apperr.Field) bool { return f.Field == field })
}

// fieldsOf are the faults that an error of huma, or of a type's own check, stands for. The values stay out of it: they
// may be secrets.
func fieldsOf(err error) []apperr.Field {
	d, ok := errors.AsType[*huma.ErrorDetail](err)
	if !ok {
		own := apperr.As(err)
		if len(own.Fields) == 0 {
			return []apperr.Field{{Detail: own.Message}}
		}
		return own.Fields
	}
	_, field, _ := strings.Cut(unmarked.Replace(d.Location), ".")
	if d.Message == "required query parameter is missing" {
		return []apperr.Field{{Field: field, Detail: "is missing"}}
	}
	if name, missing := strings.CutSuffix(d.Message, isMissing); missing {
		return []apperr.Field{{Field: strings.TrimPrefix(field+"."+name, "."), Detail: "is missing"}}
	}
	if field == "" {
		return []apperr.Field{{Detail: "the body " + d.Message}}
	}
	fault := apperr.Field{Field: text(field, maxQuote), Detail: strings.TrimPrefix(d.Message, "invalid value: ")}
	switch allowed, isEnum := strings.CutPrefix(d.Message, mustBeOneOf); {
	case isEnum:
		fault.Allowed = strings.Split(allowed, ", ")
	case d.Message == "invalid integer":
		fault.Detail = validation.MsgExpectedInteger
	case d.Message == "invalid boolean":
		fault.Detail = validation.MsgExpectedBoolean
	}
	return []apperr.Field{fault}
}

// maxFaults bounds an answer: a body of 1 MiB can have very many faults.
const maxFaults = 20

// invalid names all the faults. Those without a field are about the request as a whole.
func invalid(faults []apperr.Field) error {
	slices.SortStableFunc(faults, func(a, b apperr.Field) int { return cmp.Compare(a.Field, b.Field) })
	faults = slices.CompactFunc(faults, func(a, b apperr.Field) bool {
		return a.Field == b.Field && a.Detail == b.Detail
	})
	err := &apperr.Error{Code: apperr.Invalid}
	var texts []string
	for _, f := range faults[:min(len(faults), maxFaults)] {
		if f.Field == "" {
			texts = append(texts, f.Detail)
			continue
		}
		texts, err.Fields = append(texts, f.Field+": "+f.Detail), append(err.Fields, f)
	}
	if more := len(faults) - maxFaults; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d faults more", more))
	}
	err.Message = strings.Join(texts, "; ")
	return err
}
