package openstack

import (
	"strconv"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestQuotas: each service has its own words for a quota, and oslo.limit has others for unified limits.
func TestQuotas(t *testing.T) {
	t.Parallel()
	for message, status := range map[string]int{
		"Project 1 is over a limit for [Resource servers is over limit of 1 due to current usage 1 and delta 1]": 403,
		"Resource server_key_pairs is over limit of 1 due to current usage 1 and delta 1":                        403,
		"The response body: Project 1 is over a limit for [Resource image_count_total is over limit of 1]":       413,
		"The limit has been exceeded on the number of allowed image tags. Attempted: 2, Maximum: 1":              413,
		"The size of the data 9 will exceed the limit. 1 bytes remaining.":                                       413,
		"Personality file limit exceeded":                                                  403,
		"Personality file path exceeds maximum 255":                                        403,
		"Personality file content exceeds maximum 10240":                                   403,
		"Requested volume size 9G is larger than maximum allowed limit 1G.":                413,
		"Image quota exceeded":                                                             413,
		"Per-tenant subnet pool prefix quota exceeded.":                                    409,
		"Creation not allowed because a quota has been reached":                            403,
		"Unable to create additional credentials, maximum of 1 already exceeded for user.": 403,
	} {
		s := newStub(t)
		s.answer("POST /compute/servers", status, `{"error": {"message": `+strconv.Quote(message)+`}}`)
		if err := create(t.Context(), s.session(t)); apperr.CodeOf(err) != apperr.Quota {
			t.Errorf("%s: got %s", message, apperr.CodeOf(err))
		}
	}
}
