package orders

import (
	"maps"
	"slices"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestVolumesAreSet: the step is taken once for each server, again after it has failed, and again when it worked but
// that was not stored. The servers are stopped after it. What the session may not do is left to another one.
func TestVolumesAreSet(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		isStopped bool
		once      map[string]error
		want      map[string]int // calls
		status    domain.OrderStatus
	}{
		"all is well":       {false, nil, map[string]int{"volumes": 2, "record": 2}, domain.OrderDone},
		"it is stopped too": {true, nil, map[string]int{"volumes": 2, "record": 2, "stop": 2}, domain.OrderDone},
		"a server is busy": {
			true,
			map[string]error{"volumes": apperr.New(apperr.Conflict, "busy")},
			map[string]int{"volumes": 3, "record": 2, "stop": 2},
			domain.OrderDone,
		},
		"nova is down": {
			false,
			map[string]error{"volumes": apperr.New(apperr.Unavailable, "down")},
			map[string]int{"volumes": 3, "record": 2},
			domain.OrderDone,
		},
		"it was not stored": {
			false,
			map[string]error{"record": apperr.New(apperr.Unavailable, "down")},
			map[string]int{"volumes": 3, "record": 3},
			domain.OrderDone,
		},
		"it is forbidden": {
			true,
			map[string]error{"volumes": apperr.New(apperr.Forbidden, "no")},
			map[string]int{"volumes": 2, "record": 1},
			domain.OrderRunning,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &fakeBackend{once: tc.once, volumes: []domain.ServerVolume{{SizeGB: 1}}} // which stays
			status, err := d.work(t, domain.OrderSpec{SetsVolumes: true, Stopped: tc.isStopped}, nil)
			tc.want["create"] = 2
			got := map[string]int{}
			for _, call := range d.calls {
				got[call]++
			}
			if status != tc.status || !maps.Equal(got, tc.want) {
				t.Errorf("the order is %s, got %v, after %v", status, err, d.calls)
			}
		})
	}
}

// TestVolumesOfRollback: a server fails after the volumes of others were set, recorded or not. Those are as they were
// created before each server is deleted: nothing of the order is left, and the volume that existed before is.
func TestVolumesOfRollback(t *testing.T) {
	t.Parallel()
	for name, once := range map[string]map[string]error{
		"recorded": nil, "not recorded": {"record": apperr.New(apperr.Unavailable, "down")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &fakeBackend{once: once, volumes: []domain.ServerVolume{
				{SizeGB: 1, Name: "data"}, {ID: "existing", DeleteOnTermination: true},
			}}
			d.onRecord = func() { d.servers[1].Status = "ERROR" }
			status, err := d.work(t, domain.OrderSpec{SetsVolumes: true, OnFailure: domain.Rollback}, nil)
			if status != domain.OrderRolledBack || err != nil || len(d.set) != 2 {
				t.Fatalf("the order is %s, got %v, after %v", status, err, d.calls)
			}
			want := []domain.ServerVolume{{SizeGB: 1, DeleteOnTermination: true}, {ID: "existing"}}
			for id, volumes := range d.set {
				if !slices.Equal(volumes, want) {
					t.Errorf("%s is deleted with %+v", id, volumes)
				}
			}
		})
	}
}
