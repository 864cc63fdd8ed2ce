package domain

import "testing"

// TestNeedsStep: Nova's create call deletes a new volume with its server and keeps an existing one, without a name.
// What was ordered differently takes a step.
func TestNeedsStep(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		volume ServerVolume
		want   bool
	}{
		"a new one that goes":        {ServerVolume{SizeGB: 1, DeleteOnTermination: true}, false},
		"a new one that stays":       {ServerVolume{SizeGB: 1}, true},
		"a new one with a name":      {ServerVolume{SizeGB: 1, DeleteOnTermination: true, Name: "data"}, true},
		"an existing one that stays": {ServerVolume{ID: "v"}, false},
		"an existing one that goes":  {ServerVolume{ID: "v", DeleteOnTermination: true}, true},
	} {
		spec := LaunchSpec{Volumes: []ServerVolume{{ID: "other"}, tc.volume}}
		if tc.volume.NeedsStep() != tc.want || spec.SetsVolumes() != tc.want {
			t.Errorf("%s: got %t and %t", name, tc.volume.NeedsStep(), spec.SetsVolumes())
		}
	}
}

// TestFirstDevice: the volume of a server without an image whose device comes first is the one that it boots from.
func TestFirstDevice(t *testing.T) {
	t.Parallel()
	all := []VolumeAttachment{
		{VolumeID: "ab", Device: "/dev/vdab"}, {VolumeID: "b", Device: "/dev/vdb"}, {VolumeID: "a", Device: "/dev/vda"},
	}
	if got := (Server{}).BootVolume(all); got != "a" {
		t.Errorf("got %q", got)
	}
	if got := (Server{Image: &ImageRef{}}).BootVolume(all[1:2]); got != "" {
		t.Errorf("with an image: got %q", got)
	}
	if got := (Server{}).BootVolume(nil); got != "" {
		t.Errorf("without volumes: got %q", got)
	}
}
