package managed

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// booted is what cloud-init makes of user_data.
type booted struct {
	Types  []string `json:"types"`
	Config struct {
		Packages []string `json:"packages"`
		Files    []struct {
			Path        string `json:"path"`
			Content     string `json:"content"`
			Encoding    string `json:"encoding"`
			Permissions string `json:"permissions"`
		} `json:"write_files"`
	} `json:"config"`
}

// boot has cloud-init itself read user_data.
func boot(t *testing.T, userData domain.Secret) booted {
	t.Helper()
	program := filepath.Join(testkit.Root(), "shared", "managed", "testdata", "merge.py")
	cmd := exec.CommandContext(t.Context(), filepath.Join(testkit.Root(), "scripts", "cloud-init"), "python", program)
	var problem bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(userData.Reveal()), &problem
	out, err := cmd.Output()
	var found booted
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		t.Fatalf("%v %s in %s", err, problem.Bytes(), userData.Reveal())
	}
	return found
}

// TestFilesOfConfigmaps: cloud-init writes them beside whatever the user_data are.
func TestFilesOfConfigmaps(t *testing.T) {
	t.Parallel()
	files := Files("app", domain.ConfigmapSpec{Data: map[string]string{
		"a.conf": "x: \"ü\"\n--\n$HOME", "/etc/motd": "hello\n", "../../out": "no",
	}})
	ours := map[string]string{
		"/etc/cloudfn/app/a.conf": "x: \"ü\"\n--\n$HOME", "/etc/motd": "hello\n", "/etc/cloudfn/app/out": "no",
	}
	const config = "#cloud-config\npackages: [nginx]\nwrite_files:\n- path: /own\n  content: mine\n"
	twice, err := WithFiles(config, map[string]string{"/first": "1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		userData domain.Secret
		types    []string // of the parts before ours
		others   map[string]string
		packages []string
	}{
		"none":           {"", nil, nil, nil},
		"blank":          {" \n", nil, nil, nil},
		"a script":       {"#!/bin/sh\necho '--'\n", []string{"text/x-shellscript"}, nil, nil},
		"a cloud-config": {config, []string{"text/cloud-config"}, map[string]string{"/own": "mine"}, []string{"nginx"}},
		"a template":     {"## template: jinja\n#cloud-config\n", []string{"text/jinja2"}, nil, nil},
		"several parts": {
			twice,
			[]string{"text/cloud-config", "text/cloud-config"},
			map[string]string{"/own": "mine", "/first": "1"},
			[]string{"nginx"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			joined, err := WithFiles(tc.userData, files)
			if err != nil {
				t.Fatal(err)
			}
			if again, _ := WithFiles(tc.userData, files); again != joined {
				t.Error("the same user_data and files have another form")
			}
			found := boot(t, joined)
			if want := append(slices.Clone(tc.types), "text/cloud-config"); !slices.Equal(found.Types, want) {
				t.Errorf("the parts are %v", found.Types)
			}
			if !slices.Equal(found.Config.Packages, tc.packages) {
				t.Errorf("the packages are %v", found.Config.Packages)
			}
			written := map[string]string{}
			for _, f := range found.Config.Files {
				content := f.Content
				if f.Encoding == "b64" {
					plain, err := base64.StdEncoding.DecodeString(content)
					if err != nil || f.Permissions != "0644" {
						t.Errorf("%+v %v", f, err)
					}
					content = string(plain)
				}
				written[f.Path] = content
			}
			want := map[string]string{}
			for _, some := range []map[string]string{ours, tc.others} {
				maps.Copy(want, some)
			}
			if diff := cmp.Diff(want, written); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestFilesThatCannotBeAdded are refused with their field.
func TestFilesThatCannotBeAdded(t *testing.T) {
	t.Parallel()
	small := map[string]string{"/a": "a"}
	for name, tc := range map[string]struct {
		userData domain.Secret
		files    map[string]string
		field    string
	}{
		"no form of cloud-init": {"canary: 1\n", small, "spec.user_data"},
		"too long":              {"", map[string]string{"/a": strings.Repeat("x", domain.MaxUserData)}, "spec.configmaps"},
	} {
		_, err := WithFiles(tc.userData, tc.files)
		e := apperr.As(err)
		if e.Code != apperr.Invalid || len(e.Fields) != 1 || e.Fields[0].Field != tc.field ||
			strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v %+v", name, err, e.Fields)
		}
	}
	if same, err := WithFiles("canary: 1\n", nil); err != nil || same != "canary: 1\n" {
		t.Errorf("without files: %v", err)
	}
}

// withFile is a server of a deployment, which was made with the text "one" in its file; now is what is declared.
func withFile(update, now string) (Desired, Object) {
	configmap := func(text string) Inventory {
		spec, _ := json.Marshal(domain.ConfigmapSpec{Data: map[string]string{"motd": text}})
		return NewInventory([]domain.Managed{{Kind: domain.KindConfigmap, Name: "files", Spec: spec}}, nil)
	}
	_, in := newFakeNova("tiny")
	in.Resource.Digest = []byte("secret")
	in.Spec = json.RawMessage(`{"flavor": "tiny", "configmaps": ["files"], "update": "` + update + `"}`)
	in.Made = domain.Revision{Number: 1, Spec: in.Spec, Digest: in.Resource.Digest}
	in.Inventory = configmap("one")
	in.Member.UserData, in.Inventory = in.userData(), configmap(now)
	return in, machineObject(domain.Server{
		ID: "s", Name: "web", Status: "ACTIVE", Tags: []string{in.Member.ID.String(), markTag},
		Flavor: domain.FlavorRef{Name: "tiny"},
	})
}

// TestFileDifference: a server with other files than declared differs. It is replaced with update: replace, else only
// new ones get the files. What a server has is not known without a digest, nor what it is to have without a configmap.
func TestFileDifference(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		update, now string
		change      func(in *Desired)
		want        []Difference
	}{
		"as declared":  {domain.UpdateReplace, "one", nil, nil},
		"replaced":     {domain.UpdateReplace, "two", nil, []Difference{{Field: "configmaps", Way: Replace, Follows: true}}},
		"for new ones": {domain.UpdateInPlace, "two", nil, []Difference{{Field: "configmaps", Way: OnlyNew}}},
		"no digest":    {domain.UpdateReplace, "two", func(in *Desired) { in.Member.UserData = "" }, nil},
		"no configmap": {domain.UpdateReplace, "two", func(in *Desired) { in.Inventory = NewInventory(nil, nil) }, nil},
		"of no known revision": {
			domain.UpdateInPlace, "two", func(in *Desired) { in.Made = domain.Revision{} },
			[]Difference{{Field: "configmaps", Way: OnlyNew}},
		},
		"with other user_data": {domain.UpdateReplace, "two", func(in *Desired) {
			in.Resource.Revision, in.Resource.Digest = 2, []byte("other")
		}, []Difference{{Field: "user_data", Way: Replace}}},
		"rebuilt with other user_data": {domain.UpdateInPlace, "two", func(in *Desired) {
			in.Resource.Revision, in.Resource.Digest = 2, []byte("other")
			in.Member.UserData = in.userData()
		}, nil},
	} {
		in, o := withFile(tc.update, tc.now)
		if tc.change != nil {
			tc.change(&in)
		}
		var got []Difference
		for _, one := range (&MachineDriver{}).Differences(in, o) {
			if one.Field == "configmaps" && one.Declared == one.Actual {
				t.Errorf("%s: it has %+v", name, one)
			}
			got = append(got, Difference{Field: one.Field, Way: one.Way, Follows: one.Follows})
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestUserDataDigest: it depends on the text of every file and on the digest of the secret user_data, and says nothing
// of the secret itself.
func TestUserDataDigest(t *testing.T) {
	t.Parallel()
	in, _ := withFile(domain.UpdateReplace, "one")
	before := in.userData()
	in.Secrets.UserData = "canary"
	if in.userData() != before || len(before) != 64 {
		t.Errorf("it is %q, and %q with the secret opened", before, in.userData())
	}
	in.Resource.Digest = []byte("other")
	other, _ := withFile(domain.UpdateReplace, "two")
	if in.userData() == before || other.userData() == before {
		t.Error("other user_data have the same digest")
	}
	in.Resource.Kind = domain.KindVolume
	if got := in.userData(); got != "" {
		t.Errorf("a volume has %q", got)
	}
}
