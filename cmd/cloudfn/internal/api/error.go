package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Error is an answer that is no success, or that did not come.
type Error struct {
	Status    int // 0 = no answer
	Code      string
	Detail    string
	Fields    []FieldError
	RequestID string
	Retry     string // Retry-After, in seconds
	Broke     bool   // the connection broke off: what was asked for may have been done
}

// nothing is how cloudfn says that a path is none of its own.
const nothing = "there is nothing at this path"

// newError reads a problem. What is none (a proxy's page, say) is told by its status alone.
func newError(a Answer) *Error {
	e := &Error{Status: a.Status, RequestID: a.Header.Get("X-Request-Id"), Retry: a.Header.Get("Retry-After")}
	var problem Problem
	if err := json.Unmarshal(a.Body, &problem); err != nil || problem.Detail == "" {
		e.Detail = fmt.Sprintf("the answer was %d %s, and not one of cloudfn's: is --url or CLOUDFN_URL right?", a.Status, http.StatusText(a.Status))
		return e
	}
	if strings.HasPrefix(problem.Detail, nothing) { // every path that we ask for is one of cloudfn's
		e.Detail = "there is a cloudfn, but not at this URL: is --url or CLOUDFN_URL right?"
		return e
	}
	e.Code, e.Detail = string(problem.Code), problem.Detail
	if problem.Errors != nil {
		e.Fields = *problem.Errors
	}
	return e
}

// Error is one line: what is wrong, in which fields, and what would be right there.
func (e *Error) Error() string {
	text := e.Detail
	for _, f := range e.Fields {
		if !strings.Contains(text, f.Detail) {
			text += fmt.Sprintf("; %s %s", f.Field, f.Detail)
		}
		if f.Allowed != nil && len(*f.Allowed) > 0 {
			text += " (allowed: " + strings.Join(*f.Allowed, ", ") + ")"
		}
	}
	if e.Retry != "" {
		text += fmt.Sprintf(" (try again in %s s)", e.Retry)
	}
	if e.Status >= http.StatusInternalServerError && e.RequestID != "" {
		text += " [" + e.RequestID + "]"
	}
	return strings.ReplaceAll(text, "\n", " ")
}
