package leases

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const volumeID = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e06"

// TestVolumesOfLease: a number is a size, an id an existing volume, and pairs say the rest, such as the server.
func TestVolumesOfLease(t *testing.T) {
	t.Parallel()
	const first = `{"instance_id":"` + instanceID + `","type":"instance"}`
	const other = `{"server_id":"` + otherServer + `","type":"instance"}`
	for _, tc := range []struct {
		args []string
		want string // the reservations, or a part of the error
	}{
		{
			[]string{"--instance", "first", "--volume", "20", "--volume", volumeID},
			first + `,{"size_gb":20,"type":"volume"},{"type":"volume","volume_id":"` + volumeID + `"}`,
		},
		{
			[]string{
				"--instance", "first,other", "--volume", "size=5,type=ssd,name=data,on-end=snapshot,instance=first",
				"--volume", "id=" + volumeID + ",on-end=delete,instance=other",
			},
			first + "," + other + `,{"instance_id":"` + instanceID +
				`","name":"data","on_end":"snapshot","size_gb":5,"type":"volume","volume_type":"ssd"},` +
				`{"on_end":"delete","server_id":"` + otherServer + `","type":"volume","volume_id":"` + volumeID + `"}`,
		},
		{[]string{"--volume", "20"}, "--volume: give the server that gets it by --instance, too"},
		{[]string{"--instance", "first", "--volume", "size=big"}, `--volume: "size=big" is wrong`},
		{[]string{"--instance", "first", "--volume", "source=image"}, `"source=image" is wrong: give a size`},
		{[]string{"--instance", "first", "--volume", "size=5,instance=nope"}, `there is no server "nope"`},
	} {
		sent, _, _, err := runCommand(t, create, append([]string{"nap", "--duration", "1h"}, tc.args...)...)
		if err != nil {
			if !strings.Contains(err.Error(), tc.want) || sent != "" {
				t.Errorf("%q: sent %q: %v", tc.args, sent, err)
			}
			continue
		}
		var body struct {
			Reservations json.RawMessage `json:"reservations"`
		}
		if json.Unmarshal([]byte(sent), &body) != nil || string(body.Reservations) != "["+tc.want+"]" {
			t.Errorf("%q: sent %s, want %s", tc.args, body.Reservations, tc.want)
		}
	}
}

// TestEndOfVolumes: a lease shows what becomes of volumes, and one whose end deletes any is ended with a confirmation.
func TestEndOfVolumes(t *testing.T) {
	t.Parallel()
	lease := fmt.Sprintf(`{"id": %q, "name": "nap", "status": "active", "on_end": "shelve", "events": [],
		"reservations": [
		{"type": "volume", "status": "active", "size_gb": 5, "on_end": "keep"},
		{"type": "volume", "status": "ended", "volume_id": %q, "on_end": "snapshot", "snapshot_id": "s"},
		{"type": "volume", "status": "active", "volume_id": %q, "on_end": "delete"}]}`, openLease, volumeID, volumeID)
	var l api.Lease
	if err := json.Unmarshal([]byte(lease), &l); err != nil {
		t.Fatal(err)
	}
	want := "volume of 5 GB, volume " + volumeID + " (snapshot s), volume " + volumeID + " (on_end delete)"
	if got := reserves(l); got != want {
		t.Errorf("it reserves %s", got)
	}
	for onEnd, isRejected := range map[string]bool{"": true, "stop": true, string(domain.OnEndNone): false} {
		if err := checkEnd(nil, l, onEnd); (err != nil) != isRejected {
			t.Errorf("with on_end %q: %v", onEnd, err)
		}
	}
	l.Status = api.LeaseStatusPending
	if err := checkEnd(nil, l, ""); err != nil {
		t.Errorf("before its start: %v", err)
	}
}
