package domain

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// The names that a lease's start, end and name have where only texts by names can be given: in the scheduler hints of
// a launch, and in the metadata of a server that is made in Nova itself.
const (
	LeaseStartKey = "lease_start" // as "start" of a lease
	LeaseEndKey   = "lease_end"   // as "end" of a lease
	LeaseNameKey  = "lease_name"
)

// LeaseOfMetadata reads the terms and the name of a lease from a server's metadata. ok is false if it has none. Times
// are those of RFC 3339. The error names the key.
func LeaseOfMetadata(metadata map[string]string) (terms LeaseTerms, name string, ok bool, err error) {
	end, ok := metadata[LeaseEndKey]
	if !ok {
		return terms, "", false, nil
	}
	if terms.End, err = time.Parse(time.RFC3339, end); err != nil {
		return terms, "", false, apperr.InvalidField(LeaseEndKey, "must be a time as of RFC 3339")
	}
	if start := metadata[LeaseStartKey]; start != "" && start != "now" {
		if terms.Start, err = time.Parse(time.RFC3339, start); err != nil {
			return terms, "", false, apperr.InvalidField(LeaseStartKey, "must be a time as of RFC 3339, or now")
		}
	}
	return terms, metadata[LeaseNameKey], true, nil
}
