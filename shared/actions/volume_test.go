package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeCinder is a Cinder, and a Nova that attaches its volumes, as far as leases use them. What it begins has ended at
// the next read. It is a fake, because the sandbox's loses no answers and has no volumes in error.
type fakeCinder struct {
	volumes   []domain.Volume
	snapshots map[string][]domain.VolumeSnapshot // by volume
	calls     []string                           // that change something
	lost      int                                // the number of the call whose answer is lost; 0 = none
	fails     bool                               // new volumes become ERROR
	isShelved bool                               // the server "s" is, with the volumes that are reserved
	deleted   map[string]bool                    // the volumes that are deleted with the server "s", as Nova has it
}

var errLost = errors.New("connection reset by peer")

// changed counts a call that has changed something.
func (c *fakeCinder) changed(name string) error {
	if c.calls = append(c.calls, name); len(c.calls) == c.lost {
		return errLost
	}
	return nil
}

func (c *fakeCinder) at(id string) *domain.Volume {
	n := slices.IndexFunc(c.volumes, func(v domain.Volume) bool { return v.ID == id })
	if n < 0 {
		return nil
	}
	return &c.volumes[n]
}

// settle ends what was begun before this read.
func (c *fakeCinder) settle() {
	c.volumes = slices.DeleteFunc(c.volumes, func(v domain.Volume) bool { return v.Status == "deleting" })
	for n := range c.volumes {
		switch v := &c.volumes[n]; v.Status {
		case "creating":
			if v.Status = "available"; c.fails {
				v.Status = "error"
			}
		case "attaching":
			v.Status = "in-use"
		case "detaching":
			v.Status, v.Servers = "available", slices.DeleteFunc(v.Servers, func(s string) bool { return s == "s" })
			if len(v.Servers) > 0 {
				v.Status = "in-use"
			}
		}
	}
	for _, all := range c.snapshots {
		for n := range all {
			if all[n].Status == "creating" {
				all[n].Status = "available"
			}
		}
	}
}

func (c *fakeCinder) Volume(_ context.Context, id string) (domain.Volume, error) {
	v := c.at(id)
	if v == nil {
		return domain.Volume{}, apperr.New(apperr.NotFound, "no volume %s", id)
	}
	found := *v
	found.Servers = slices.Clone(v.Servers)
	c.settle()
	return found, nil
}

// Volumes lists all: an operator may take the filter away.
func (c *fakeCinder) Volumes(context.Context, string, string) ([]domain.Volume, error) {
	all := slices.Clone(c.volumes)
	for n := range all {
		all[n].Servers = slices.Clone(all[n].Servers)
	}
	c.settle()
	return all, nil
}

func (*fakeCinder) VolumeFault(context.Context, string) (string, error) {
	return "no room", nil
}

func (c *fakeCinder) MakeVolume(_ context.Context, r domain.VolumeRequest) (domain.Volume, error) {
	made := domain.Volume{
		ID: fmt.Sprintf("v%d", len(c.calls)), Name: r.Name, SizeGB: r.SizeGB, Metadata: r.Metadata, Status: "creating",
		CreatedAt: time.Unix(int64(len(c.calls)), 0),
	}
	c.volumes = append(c.volumes, made)
	return made, c.changed("make")
}

func (c *fakeCinder) DeleteVolume(_ context.Context, id string) error {
	if v := c.at(id); v != nil {
		v.Status = "deleting"
	}
	return c.changed("delete " + id)
}

func (c *fakeCinder) AttachVolume(_ context.Context, server string, v domain.ServerVolume) error {
	at := c.at(v.ID)
	at.Status, at.Servers = "attaching", append(at.Servers, server)
	return c.changed("attach " + v.ID)
}

// Attachments are those of the server "s". Cinder shows no server of a volume that is reserved for a shelved one.
func (c *fakeCinder) Attachments(context.Context, string) (all []domain.VolumeAttachment, err error) {
	for _, v := range c.volumes {
		if slices.Contains(v.Servers, "s") || v.Status == "reserved" && c.isShelved {
			all = append(all, domain.VolumeAttachment{VolumeID: v.ID, DeleteOnTermination: c.deleted[v.ID]})
		}
	}
	return all, nil
}

func (c *fakeCinder) DetachVolume(_ context.Context, server, id string) error {
	if v := c.at(id); v != nil && (slices.Contains(v.Servers, server) || v.Status == "reserved") {
		v.Status = "detaching"
	}
	return c.changed("detach " + id)
}

func (c *fakeCinder) SetVolumes(_ context.Context, _ string, kept []domain.ServerVolume) error {
	for _, v := range kept {
		delete(c.deleted, v.ID)
	}
	return c.changed("keep")
}

func (c *fakeCinder) VolumeSnapshots(_ context.Context, id string) ([]domain.VolumeSnapshot, error) {
	found := slices.Clone(c.snapshots[id])
	c.settle()
	return found, nil
}

func (c *fakeCinder) SnapshotVolume(
	_ context.Context, id, _ string, metadata map[string]string,
) (domain.VolumeSnapshot, error) {
	made := domain.VolumeSnapshot{ID: "snapshot of " + id, Status: "creating", Metadata: metadata}
	if c.snapshots == nil {
		c.snapshots = map[string][]domain.VolumeSnapshot{}
	}
	c.snapshots[id] = append(c.snapshots[id], made)
	return made, c.changed("snapshot " + id)
}

// run repeats steps until the last one, as run-connections does. An error that is not final is repeated.
func (c *fakeCinder) run(
	t *testing.T, v Volume, step func(Volume, context.Context, VolumeCloud) (domain.ActionOutcome, bool, error),
) (all domain.ActionOutcome, err error) {
	t.Helper()
	for range 20 {
		out, isDone, err := step(v, t.Context(), c)
		all = all.Merge(out)
		v.ID, v.IsUsed = cmp.Or(all.VolumeID, v.ID), v.IsUsed || all.IsUsed
		if isDone || apperr.Final(err) {
			return all, err
		}
	}
	t.Fatalf("it does not end: %+v after %v", c.volumes, c.calls)
	return all, nil
}

// TestVolumeCrashPoints: the answer of each call that changes something is lost, and the steps are repeated with what
// the reservation knew before. Nothing is made twice, and all ends as OnEnd says.
func TestVolumeCrashPoints(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		volume domain.LeasedVolume
		calls  string // when no answer is lost
		left   string // the volumes and the snapshots
	}{
		"new, kept": {
			domain.LeasedVolume{IsNew: true, SizeGB: 1, OnEnd: domain.VolumeEndKeep},
			"make, attach v0, detach v0", "v0 available",
		},
		"new, a snapshot": {
			domain.LeasedVolume{IsNew: true, SizeGB: 1, OnEnd: domain.VolumeEndSnapshot},
			"make, attach v0, detach v0, snapshot v0", "v0 available, snapshot of v0 available",
		},
		"new, deleted": {
			domain.LeasedVolume{IsNew: true, SizeGB: 1, OnEnd: domain.VolumeEndDelete},
			"make, attach v0, detach v0, delete v0", "",
		},
		"named, kept": {
			domain.LeasedVolume{ID: "named", OnEnd: domain.VolumeEndKeep},
			"attach named, detach named", "named available",
		},
		"named, deleted": {
			domain.LeasedVolume{ID: "named", OnEnd: domain.VolumeEndDelete},
			"attach named, detach named, delete named", "",
		},
	} {
		for lost := range len(strings.Split(tc.calls, ", ")) + 1 {
			t.Run(fmt.Sprintf("%s/%d", name, lost), func(t *testing.T) {
				t.Parallel()
				c := &fakeCinder{lost: lost}
				if tc.volume.ID != "" {
					c.volumes = []domain.Volume{{ID: tc.volume.ID, Status: "available"}}
				}
				v := Volume{
					VolumeTask: domain.VolumeTask{LeasedVolume: tc.volume, Reservation: uuid.New()}, ServerID: "s",
				}
				out, err := c.run(t, v, Volume.Attach)
				if at := c.at(out.VolumeID); err != nil || at == nil || at.Status != "in-use" || !out.IsUsed {
					t.Fatalf("attached: %+v, %v: %+v", out, err, c.volumes)
				}
				v.ID, v.IsUsed = out.VolumeID, true
				if _, err := c.run(t, v, Volume.Detach); err != nil {
					t.Fatal(err)
				}
				if lost == 0 && strings.Join(c.calls, ", ") != tc.calls {
					t.Errorf("called %v", c.calls)
				}
				if got := c.left(); got != tc.left {
					t.Errorf("left is %q, want %q, after %v", got, tc.left, c.calls)
				}
			})
		}
	}
}

// left are the volumes and snapshots that are there.
func (c *fakeCinder) left() string {
	c.settle()
	var all []string
	for _, v := range c.volumes {
		all = append(all, v.ID+" "+v.Status)
		for _, s := range c.snapshots[v.ID] {
			all = append(all, s.ID+" "+s.Status)
		}
	}
	return strings.Join(all, ", ")
}

// TestVolumeBesideThePath: what the volume's owner has done to it, and what Cinder could not do.
func TestVolumeBesideThePath(t *testing.T) {
	t.Parallel()
	mark := uuid.New()
	marked := map[string]string{domain.VolumeMark: mark.String()}
	isNew, named := domain.LeasedVolume{IsNew: true, SizeGB: 1}, domain.LeasedVolume{ID: "v"}
	of := func(v domain.LeasedVolume, onEnd domain.VolumeEnd) domain.LeasedVolume {
		v.OnEnd = onEnd
		return v
	}
	one := func(status string, servers ...string) []domain.Volume {
		return []domain.Volume{{ID: "v", Status: status, Servers: servers, Metadata: marked}}
	}
	several := func(servers ...string) []domain.Volume {
		return []domain.Volume{{ID: "v", Status: "in-use", Servers: servers, IsMultiattach: true}}
	}
	strange := []domain.Volume{{ID: "v", Status: "available", Metadata: map[string]string{domain.VolumeMark: "x"}}}
	other := domain.Volume{ID: "other", Status: "available", Metadata: marked, CreatedAt: time.Unix(9, 0)}
	two, stuck, foreign := append(one("available"), other), append(one("error_deleting"), other), one("available")
	foreign[0].ProjectID = "theirs"
	lost := domain.LeasedVolume{IsNew: true, ID: "v"}
	const keep, del, snap = domain.VolumeEndKeep, domain.VolumeEndDelete, domain.VolumeEndSnapshot
	for name, tc := range map[string]struct {
		volume  domain.LeasedVolume
		isUsed  bool
		there   []domain.Volume
		attach  bool   // else it is detached
		problem string // "" = it is done
		calls   string
	}{
		"attach one that does not exist":       {named, false, nil, true, "there is no volume v", ""},
		"attach a new one that was deleted":    {lost, true, nil, true, "there is no volume v", ""},
		"attach one that another server has":   {named, false, one("in-use", "x"), true, "to the server x", ""},
		"attach one that the server has":       {named, false, one("in-use", "s"), true, "", ""},
		"attach one that several may have":     {named, false, several("x"), true, "", "attach v"},
		"attach one in error":                  {named, false, one("error"), true, "no room", ""},
		"a new one that Cinder could not make": {isNew, false, one("error"), true, "no room", "delete v"},
		"a new one with data in error":         {lost, true, one("error"), true, "no room", ""},
		"of two with the mark the older":       {isNew, false, two, true, "", "attach v"},
		"attach one that another has reserved": {named, false, one("reserved"), true, "for another server", ""},
		"attach one of another project":        {named, false, foreign, true, "there is no volume v", ""},
		"a new one that cannot be deleted":     {isNew, false, stuck, true, "", "attach other"},

		"end one of a shelved server":            {of(named, keep), true, one("reserved"), false, "", "detach v"},
		"end one of another server, reserved":    {of(named, del), true, one("reserved"), false, "another server", ""},
		"keep one that another has reserved":     {of(named, keep), true, one("reserved"), false, "", ""},
		"a new one that Nova shows attached":     {of(isNew, keep), false, one("in-use", "s"), false, "", "detach v"},
		"end one that was deleted":               {of(named, del), true, nil, false, "", ""},
		"end one that another server has":        {of(named, del), true, one("in-use", "x"), false, "the server x", ""},
		"keep one that another server has":       {of(named, keep), true, one("in-use", "x"), false, "", ""},
		"detach one that others have, too":       {of(named, keep), true, several("x", "s"), false, "", "detach v"},
		"a named one that was never attached":    {of(named, del), false, one("available"), false, "", ""},
		"a new one that was never attached":      {of(isNew, keep), false, one("available"), false, "", "delete v"},
		"a snapshot of one that others have":     {of(named, snap), true, one("in-use", "x"), false, "server x", ""},
		"one that Cinder cannot delete":          {of(named, del), true, one("error_deleting"), false, "no room", ""},
		"one of another reservation is not ours": {of(isNew, del), true, strange, false, "", ""},
	} {
		c := &fakeCinder{volumes: tc.there}
		v := Volume{
			VolumeTask: domain.VolumeTask{LeasedVolume: tc.volume, Reservation: mark, IsUsed: tc.isUsed}, ServerID: "s",
			ProjectID: "ours",
		}
		step := Volume.Detach
		if tc.attach {
			step = Volume.Attach
		}
		if strings.Contains(name, "shelved") {
			c.isShelved = true
		}
		_, err := c.run(t, v, step)
		if (err == nil) != (tc.problem == "") || err != nil && !strings.Contains(err.Error(), tc.problem) {
			t.Errorf("%s: got %v, want %q", name, err, tc.problem)
		}
		if got := strings.Join(c.calls, ", "); got != tc.calls {
			t.Errorf("%s: called %q, want %q", name, got, tc.calls)
		}
	}
}

// TestFailedVolumeIsMadeAgain: Cinder could not make the volume. The action fails and deletes it, and the next one
// makes another.
func TestFailedVolumeIsMadeAgain(t *testing.T) {
	t.Parallel()
	c := &fakeCinder{fails: true}
	v := Volume{
		VolumeTask: domain.VolumeTask{
			LeasedVolume: domain.LeasedVolume{IsNew: true, SizeGB: 1}, Reservation: uuid.New(),
		},
		ServerID: "s",
	}
	out, err := c.run(t, v, Volume.Attach)
	if apperr.CodeOf(err) != apperr.Conflict || out.IsUsed {
		t.Fatalf("got %+v, %v", out, err)
	}
	c.fails, v.ID = false, out.VolumeID // the reservation knows it
	if out, err = c.run(t, v, Volume.Attach); err != nil || len(c.volumes) != 1 || c.volumes[0].ID != out.VolumeID {
		t.Errorf("got %+v, %v: %+v after %v", out, err, c.volumes, c.calls)
	}
}

// TestVolumeIsKeptWithItsServer: Nova does not delete the volume with its server, whatever its owner had said when he
// attached it. When that cannot be set, the volume does not count as attached.
func TestVolumeIsKeptWithItsServer(t *testing.T) {
	t.Parallel()
	c := &fakeCinder{
		volumes: []domain.Volume{{ID: "v", Status: "in-use", Servers: []string{"s"}}}, deleted: map[string]bool{"v": true},
		lost: 1,
	}
	v := Volume{VolumeTask: domain.VolumeTask{LeasedVolume: domain.LeasedVolume{ID: "v"}}, ServerID: "s"}
	if _, isDone, err := v.Attach(t.Context(), c); isDone || err == nil {
		t.Errorf("no answer: done is %t, %v", isDone, err)
	}
	if _, err := c.run(t, v, Volume.Attach); err != nil || c.deleted["v"] {
		t.Errorf("got %v: %v", err, c.deleted)
	}
}
