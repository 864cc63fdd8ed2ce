package managed

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// TestDiff shows the differences of the resource and of each member, which it names, and ends with the codes of kubectl
// diff.
func TestDiff(t *testing.T) {
	t.Parallel()
	const member, old, renewed = "3f8fad5b-d9cb-469f-a165-70867728950e", "11111111-1111-4111-8111-111111111111",
		"22222222-2222-4222-8222-222222222222"
	a, out, _ := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RequestURI() {
		case "/v1/managed/VirtualMachine/web/diff":
			fmt.Fprintf(w, `{"from": 2, "differences": [{"path": "spec.count", "from": 3, "to": 2},
				{"member": %q, "path": "spec.flavor", "from": "m1.tiny", "to": "m1.small"},
				{"member": %q, "path": "exists", "from": true, "to": false}]}`, member, old)
		case "/v1/managed/VirtualMachine/web":
			fmt.Fprintf(w, `{"members": [{"id": %q, "name": "web-0"}, {"id": %q, "name": "web-1"},
				{"id": %q, "name": "web-1"}]}`, member, old, renewed)
		case "/v1/managed/VirtualMachine/web/diff?from=1&to=2":
			fmt.Fprint(w, `{"from": 1, "to": 2, "differences": [{"path": "spec.user_data"}]}`)
		case "/v1/managed/VirtualMachine/same/diff":
			fmt.Fprint(w, `{"from": 1, "differences": []}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"detail": "no such revision", "code": "not_found"}`)
		}
	})
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"VirtualMachine web": {exit.Failed, "VirtualMachine/web: revision 2 -> what is real\n" +
			"- spec.count: 3\n+ spec.count: 2\n" +
			"VirtualMachine/web: revision 2 -> what is real, web-0\n" +
			"- spec.flavor: m1.tiny\n+ spec.flavor: m1.small\n" +
			"VirtualMachine/web: revision 2 -> what is real, web-1 (" + old + ")\n" +
			"- exists: true\n+ exists: false\n"},
		"VirtualMachine/web 1 2": {
			exit.Failed, "VirtualMachine/web: revision 1 -> revision 2\n+ spec.user_data: (secret)\n",
		},
		"VirtualMachine same":    {exit.Done, ""},
		"VirtualMachine web 9":   {exit.NotFound, ""},
		"VirtualMachine web 0":   {exit.Usage, ""},
		"VirtualMachine/web 1 a": {exit.Usage, ""},
	} {
		out.Reset()
		cmd := diff(a)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		err := cmd.ExecuteContext(t.Context())
		code := exit.Done
		if err != nil {
			code = a.Code(err)
		}
		if d := cmp.Diff(want.text, out.String()); d != "" || code != want.code {
			t.Errorf("%s ends with %d, %v, want %d: %s", args, code, err, want.code, d)
		}
	}
}
