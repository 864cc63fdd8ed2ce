package openstack

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestSetNetworkGroups: a port gets the groups of its network, once. One that existed before the server keeps its own,
// and one that someone has taken from the server is not its failure.
func TestSetNetworkGroups(t *testing.T) {
	t.Parallel()
	const refusal = `{"NeutronError": {"type": "NotFound", "message": "it could not be found", "detail": ""}}`
	port := func(id, network, groups, more string) string {
		return fmt.Sprintf(`{"id":%q,"device_owner":"compute:nova","network_id":%q,"security_groups":[%s],
			"revision_number":3,"fixed_ips":[{"subnet_id":"s","ip_address":"10.0.0.%s"}]%s}`, id, network, groups, id, more)
	}
	own := domain.Attachment{PortID: "9"}
	front := domain.Attachment{NetworkID: "front", SecurityGroups: []string{"web", "ssh"}}
	back := domain.Attachment{NetworkID: "back", FixedIP: "10.0.0.3", SecurityGroups: []string{"db"}}
	for name, tc := range map[string]struct {
		attachments []domain.Attachment
		ports       []string // at each look
		status      int      // of the change
		changed     string
		areFound    bool
		code        apperr.Code
	}{
		"by network and address": {
			[]domain.Attachment{front, back, own, {NetworkID: "back"}},
			[]string{
				strings.Join([]string{
					port("1", "front", `"all"`, ""), port("2", "back", `"all"`, ""), port("3", "back", `"all"`, ""),
					port("9", "front", `"its own"`, ""),
				}, ","),
			},
			200, "/1 /3", true, "",
		},
		"they are set": {
			[]domain.Attachment{front}, []string{port("1", "front", `"ssh","web"`, "")}, 200, "", true, "",
		},
		"one is not there": {
			[]domain.Attachment{front, back}, []string{port("1", "front", `"all"`, "")}, 200, "/1", false, "",
		},
		"without port security": {
			[]domain.Attachment{front},
			[]string{port("1", "front", "", `,"port_security_enabled":false`)},
			200, "", false,
			apperr.Conflict,
		},
		"a group is deleted": {
			[]domain.Attachment{front}, []string{port("1", "front", `"all"`, "")}, 404, "/1", false, apperr.NotFound,
		},
		"the port is taken meanwhile": {
			[]domain.Attachment{front}, []string{port("1", "front", `"all"`, ""), ""}, 404, "/1", false, "",
		},
		"the port is changed meanwhile": {
			[]domain.Attachment{front},
			[]string{port("1", "front", `"all"`, "")},
			412, "/1", false,
			apperr.Precondition,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, look := newStub(t), 0
			s.mux.HandleFunc("GET /network/v2.0/ports", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"ports":[` + tc.ports[min(look, len(tc.ports)-1)] + `]}`))
				look++
			})
			changed := []string{}
			s.mux.HandleFunc("PUT /network/v2.0/ports/{id}", func(w http.ResponseWriter, r *http.Request) {
				changed = append(changed, "/"+r.PathValue("id"))
				if w.WriteHeader(tc.status); tc.status != 200 {
					_, _ = w.Write([]byte(refusal))
					return
				}
				_, _ = w.Write([]byte(`{"port":{}}`))
			})
			areFound, err := s.session(t).SetNetworkGroups(t.Context(), "s1", tc.attachments)
			got := strings.Join(changed, " ")
			if got != tc.changed || areFound != tc.areFound || apperr.CodeOf(err) != tc.code {
				t.Errorf("changed %q, found %t, %v", got, areFound, err)
			}
		})
	}
}
