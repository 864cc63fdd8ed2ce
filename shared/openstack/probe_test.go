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

// TestBuildingServers: servers that are unshelved count, and shelved ones do not.
func TestBuildingServers(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.pages("GET /compute/servers/detail", map[string]string{
		"": `{"servers": [{"id": "built", "status": "BUILD"}, {"id": "shelved", "status": "SHELVED_OFFLOADED"},
			{"id": "unshelved", "status": "SHELVED_OFFLOADED", "OS-EXT-STS:task_state": "spawning"}]}`,
		"unshelved": `{"servers": []}`,
	})
	found, err := s.session(t).BuildingServers(t.Context(), "p")
	if err != nil || len(found) != 2 || found[0].ID != "built" || found[1].ID != "unshelved" {
		t.Errorf("got %+v %v", found, err)
	}
	if queries := s.queries("/compute/servers/detail"); len(queries) != 2 ||
		!strings.Contains(queries[0], "status=BUILD&status=SHELVED_OFFLOADED") {
		t.Errorf("the queries are %v", queries)
	}
}
