package openstack

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestProbeThatAnotherDeletes: of two self-tests of a host at the same time one may delete the other's server.
func TestProbeThatAnotherDeletes(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("POST /compute/servers", 202, `{"server": {"id": "s1"}}`)
	s.answer("GET /compute/servers/s1", 404, `{"itemNotFound": {"code": 404, "message": "Instance s1 is unknown."}}`)
	_, err := s.session(t).probe(t.Context(), "compute-3", "f", "i")
	if apperr.CodeOf(err) != apperr.Conflict || !strings.Contains(err.Error(), "another self-test") {
		t.Errorf("got %v", err)
	}
}
