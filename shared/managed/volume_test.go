package managed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestVolumeOfAnImage is filled with it. An image that is managed and not there yet is waited for.
func TestVolumeOfAnImage(t *testing.T) {
	t.Parallel()
	spec := domain.VolumeSpec{SizeGB: 1, Image: testkit.Sandbox(t).Image}
	s := newSandbox(t, VolumeDriver{}, spec)
	made, updates := s.settle(t)
	if updates != 0 {
		t.Errorf("%d updates of %+v", updates, made)
	}
	s.remove(t)

	s.declare(t, domain.VolumeSpec{SizeGB: 1, Image: "absent"})
	if _, err := s.driver.Create(t.Context(), s.Session, s.in); apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("an absent image: %v", err)
	}
	s.in.Inventory = NewInventory([]domain.Managed{{Kind: domain.KindImage, Name: "absent"}}, nil)
	_, err := s.driver.Create(t.Context(), s.Session, s.in)
	if wait, ok := errors.AsType[WaitError](err); !ok || wait.Reason != "ImageNotReady" {
		t.Errorf("a managed image: %v", err)
	}
	s.declare(t, domain.VolumeSpec{SizeGB: 1, Type: s.in.Member.ID.String()})
	if _, err := s.driver.Create(t.Context(), s.Session, s.in); apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("the id of a type: %v", err)
	}
	s.declare(t, domain.VolumeSpec{SizeGB: 1, Type: "absent"})
	if _, err := s.driver.Create(t.Context(), s.Session, s.in); apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("an absent type: %v", err)
	}
}

// TestVolumeAsCinderKeepsIt: Cinder strips descriptions, and finds types in tables that ignore case.
func TestVolumeAsCinderKeepsIt(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, VolumeDriver{}, domain.VolumeSpec{
		SizeGB: 1, Description: "\u3000 two\nlines \n", Type: "Standard",
	})
	made, updates := s.settleNew(t)
	if v := raw[domain.Volume](made); updates != 0 || v.Description != "two\nlines" || v.Type != "standard" {
		t.Errorf("%d updates of %+v", updates, v)
	}
	s.differ(t, made)
	s.remove(t)
}

// TestLongVolumeInUse: a volume that a server has grows, too, and is deleted only without the server.
func TestLongVolumeInUse(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, VolumeDriver{}, domain.VolumeSpec{SizeGB: 1})
	made, _ := s.settle(t)
	server := s.project.Boot(t, "user", 1)[0]
	if err := s.Cloud.AttachVolume(t.Context(), server.ID, domain.ServerVolume{ID: made.ID}); err != nil {
		t.Fatal(err)
	}
	var o Object
	testkit.Eventually(t, time.Minute, "the volume is in use", func() bool {
		o, _ = s.list(t)
		return raw[domain.Volume](o).Status == "in-use"
	})
	s.declare(t, domain.VolumeSpec{SizeGB: 2})
	if o, _ = s.settle(t); raw[domain.Volume](o).SizeGB != 2 {
		t.Errorf("it is %+v", o)
	}
	err := s.driver.Delete(t.Context(), s.Session, o)
	wait, ok := errors.AsType[WaitError](err)
	if !ok || wait.Reason != "InUse" || !strings.Contains(wait.Message, server.ID) {
		t.Errorf("it is deleted: %v", err)
	}
	stale := raw[domain.Volume](o) // as it was listed before someone attached it
	stale.Status, stale.Servers = "available", nil
	err = s.driver.Delete(t.Context(), s.Session, volumeObject(stale))
	if wait, ok := errors.AsType[WaitError](err); !ok || wait.Reason != "InUse" {
		t.Errorf("it is deleted: %v", err)
	}
	if err := s.Cloud.DetachVolume(t.Context(), server.ID, o.ID); err != nil {
		t.Error(err)
	}
	s.remove(t)
}

// fixed is a cloud whose backend changes the type of no volume, which Cinder shows by doing nothing. The sandbox's
// backend changes any.
type fixed struct{ Cloud }

func (fixed) RetypeVolume(context.Context, string, string) error { return nil }

// TestLongVolumeKeepsItsType: a change that Cinder accepts and does not make is a failure, which is repeated after a
// pause.
func TestLongVolumeKeepsItsType(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, VolumeDriver{}, domain.VolumeSpec{SizeGB: 1, Type: "standard"})
	made, _ := s.settle(t)
	s.declare(t, domain.VolumeSpec{SizeGB: 1, Type: "fast"})
	whole := s.Cloud
	s.Cloud = fixed{whole}
	err := s.driver.Update(t.Context(), s.Session, s.in, made, s.driver.Differences(s.in, made))
	if apperr.CodeOf(err) != apperr.Conflict || !strings.Contains(err.Error(), "fast") {
		t.Errorf("it ends with %v", err)
	}
	s.Cloud = whole
	if err := s.driver.Update(t.Context(), s.Session, s.in, made, s.driver.Differences(s.in, made)); err != nil {
		t.Error(err)
	}
}

// TestVolumeWithoutBackend: a volume that no backend takes says so in Cinder's words.
func TestVolumeWithoutBackend(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, VolumeDriver{}, domain.VolumeSpec{SizeGB: 1, Type: testkit.VolumeTypeWithoutBackend(t)})
	t.Cleanup(func() { s.empty(t) }) // before its type
	if _, err := s.driver.Create(t.Context(), s.Session, s.in); err != nil {
		t.Fatal(err)
	}
	const want = "Cinder's status of the volume is error: schedule allocate volume:Could not find any available " +
		"weighted backend."
	testkit.Eventually(t, settleFor, want, func() bool {
		listed, _ := s.list(t)
		read, err := s.driver.Find(t.Context(), s.Session, listed.ID)
		return err == nil && listed.Reason == want && read.Reason == want
	})
}

// TestVolumeStates: what Cinder says of a volume.
func TestVolumeStates(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]ObjectState{
		"available": ObjectReady, "in-use": ObjectReady, "reserved": ObjectReady, "creating": ObjectWorking,
		"extending": ObjectWorking, "of-a-later-release": ObjectWorking, "error": ObjectError, "error_extending": ObjectError,
		"deleting": ObjectDeleting, "error_deleting": ObjectError,
	} {
		o := volumeObject(domain.Volume{Status: status})
		if o.State != want || (o.Reason != "") != (want == ObjectError) || !o.Keep {
			t.Errorf("%s: %+v", status, o)
		}
	}
	attached := volumeObject(domain.Volume{Status: "in-use", Servers: []string{"s1"}})
	busy := volumeObject(domain.Volume{Status: "extending"})
	for _, o := range []Object{attached, busy} {
		err := VolumeDriver{}.Delete(t.Context(), Session{}, o)
		if wait, ok := errors.AsType[WaitError](err); !ok || !slices.Contains([]string{"InUse", "Busy"}, wait.Reason) {
			t.Errorf("%v: %v", o.Raw, err)
		}
	}
}
