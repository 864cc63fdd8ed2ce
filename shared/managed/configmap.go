package managed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"mime/multipart"
	"net/textproto"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ConfigmapDriver keeps files for servers. They have no object in OpenStack: the declaration itself is all there is,
// and a server gets the files when it is made.
type ConfigmapDriver struct{}

// Kinds implements Driver.
func (ConfigmapDriver) Kinds() []domain.Kind { return []domain.Kind{domain.KindConfigmap} }

// Needs implements Driver.
func (ConfigmapDriver) Needs(json.RawMessage) []Ref { return nil }

// List implements Driver. The object of a member is the member itself, until it is being deleted.
func (ConfigmapDriver) List(_ context.Context, _ Session, members []domain.Member) (map[uuid.UUID]Object, error) {
	found := make(map[uuid.UUID]Object, len(members))
	for _, m := range members {
		if m.ObjectID != "" && m.Status != domain.MemberDeleting {
			found[m.ID] = Object{ID: m.ObjectID, State: ObjectReady, CreatedAt: m.CreatedAt}
		}
	}
	return found, nil
}

// Find implements Driver.
func (ConfigmapDriver) Find(_ context.Context, _ Session, id string) (Object, error) {
	return Object{}, apperr.New(apperr.NotFound, "there is no object %s", id)
}

// Create implements Driver.
func (ConfigmapDriver) Create(_ context.Context, _ Session, in Desired) (string, error) {
	return in.Member.ID.String(), nil
}

// Differences implements Driver. The servers that name it differ.
func (ConfigmapDriver) Differences(Desired, Object) []Difference { return nil }

// Update implements Driver.
func (ConfigmapDriver) Update(context.Context, Session, Desired, Object, []Difference) error {
	return nil
}

// Delete implements Driver.
func (ConfigmapDriver) Delete(context.Context, Session, Object) error { return nil }

// configmapFolder is where a server has the files of its configmaps: /etc/cloudfn/<configmap>/<file>.
const configmapFolder = "/etc/cloudfn"

// Files returns the files of a configmap by their paths on a server. A name that begins with / is a path itself.
func Files(configmap string, spec domain.ConfigmapSpec) map[string]string {
	files := make(map[string]string, len(spec.Data))
	for name, text := range spec.Data {
		if path.IsAbs(name) {
			files[path.Clean(name)] = text
		} else {
			files[path.Join(configmapFolder, configmap, path.Join("/", name))] = text // it stays in its folder
		}
	}
	return files
}

// files returns the files that servers of a spec get, by their paths. It is false when a configmap does not exist.
func (a Inventory) files(spec domain.MachineSpec) (map[string]string, bool) {
	files := map[string]string{}
	for _, name := range spec.Configmaps {
		m, ok := a.Resource(domain.KindConfigmap, name)
		if !ok {
			return nil, false
		}
		maps.Copy(files, Files(name, read[domain.ConfigmapSpec](m.Spec)))
	}
	return files, true
}

// UserDataDigest is a digest of what the user_data of a server of a revision are made from: the secret user_data and
// the files of its configmaps, which are those of the project. It is "" when one does not exist.
//
// The digest is stored and shown, and user_data may have passwords. So it is not of their text, which could be guessed,
// but of the revision's digest of it: that one has the resource's id as salt, and is slow to compute. The files are no
// secrets: everyone in the project can read a configmap.
func UserDataDigest(r domain.Revision, inventory Inventory) string {
	files, ok := inventory.files(read[domain.MachineSpec](r.Spec))
	if !ok {
		return ""
	}
	var pod *domain.PodTemplate
	if declared := read[domain.PodTemplate](r.Spec); len(declared.Containers) > 0 {
		declared = normalized(declared)
		pod = &declared
	}
	text, err := json.Marshal(struct {
		UserData string              `json:"user_data"`
		Files    map[string]string   `json:"files"`
		Pod      *domain.PodTemplate `json:"pod,omitempty"`
	}{hex.EncodeToString(r.Digest), files, pod})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// userData is the UserDataDigest of what a new server would get now. Only servers have one.
func (in Desired) userData() string {
	if !in.Resource.Kind.IsServer() {
		return ""
	}
	return UserDataDigest(domain.Revision{Spec: in.Spec, Digest: in.Resource.Digest}, in.Inventory)
}

// fileDifference reports that a server has other files of its configmaps than those that are declared now. Nova cannot
// change them in place, so a change reaches only new servers, unless servers are replaced by each update.
func fileDifference(in Desired, spec domain.MachineSpec) (one Difference, isOther bool) {
	now, had := in.userData(), in.Member.UserData
	if now == "" || had == "" || now == had {
		return one, false
	}
	one = Difference{Field: "configmaps", Declared: "sha256:" + now, Actual: "sha256:" + had, Way: OnlyNew}
	if spec.Update == domain.UpdateReplace {
		one.Way, one.Follows = Replace, true
	}
	return one, true
}

// hasUserData reports whether a server is known to have the user_data and files that are declared.
func hasUserData(in Desired) bool {
	return in.Member.UserData != "" && in.Member.UserData == in.userData()
}

// knownUserData returns the digest of the user_data and files that a server has; "" = not known. A server that is to
// have its former image back may have been rebuilt with other files or not: its image does not show which.
func (in Desired) knownUserData() string {
	if in.Member.IsRebuilt && in.Made.Number != in.Resource.Revision &&
		read[domain.MachineSpec](in.Spec).Image == read[domain.MachineSpec](in.Made.Spec).Image {
		return ""
	}
	return in.Member.UserData
}

// WithFiles adds files to user_data: cloud-init writes them at the first boot, before it runs any script of it. What
// the user_data themselves hold stays as it is; user_data in a form that cloud-init does not know are Invalid.
func WithFiles(userData domain.Secret, files map[string]string) (domain.Secret, error) {
	if len(files) == 0 {
		return userData, nil
	}
	config, err := filesConfig(files)
	if err != nil {
		return "", err
	}
	out := config
	if strings.TrimSpace(userData.Reveal()) != "" {
		if out, err = joined(userData.Reveal(), config); err != nil {
			return "", err
		}
	}
	if len(out) > domain.MaxUserData {
		return "", apperr.InvalidField("spec.configmaps", fmt.Sprintf(
			"user_data with the files of configmaps and containers have %d bytes: Nova takes at most %d", len(out),
			domain.MaxUserData))
	}
	return domain.Secret(out), nil
}

// filesConfig is user_data for cloud-init that writes files. It is written as JSON, which is YAML too.
func filesConfig(files map[string]string) (string, error) {
	type file struct {
		Path        string `json:"path"`
		Permissions string `json:"permissions"`
		Encoding    string `json:"encoding"`
		Content     []byte `json:"content"` // base64 in JSON
	}
	all := make([]file, 0, len(files))
	for _, name := range slices.Sorted(maps.Keys(files)) {
		one := file{Path: name, Permissions: "0644", Encoding: "b64", Content: []byte(files[name])}
		if name == podFile { // its environment is for root only
			one.Permissions = "0600"
		}
		all = append(all, one)
	}
	cloudConfig := map[string]any{
		"write_files": all,
		// after the files of the user's own cloud-config, which cloud-init would replace otherwise
		"merge_how": "list(append)+dict(no_replace,recurse_list)+str()",
	}
	if _, isPod := files[podFile]; isPod {
		maps.Copy(cloudConfig, podConfig)
	}
	config, err := json.Marshal(cloudConfig)
	return "#cloud-config\n" + string(config) + "\n", err
}

// contentTypes are cloud-init's, by how user_data begin. The longer ones are first.
var contentTypes = []struct{ prefix, contentType string }{
	{"#cloud-config-archive", "text/cloud-config-archive"},
	{"#cloud-config-jsonp", "text/cloud-config-jsonp"},
	{"#cloud-config", "text/cloud-config"},
	{"#cloud-boothook", "text/cloud-boothook"},
	{"#include-once", "text/x-include-once-url"},
	{"#include", "text/x-include-url"},
	{"#part-handler", "text/part-handler"},
	{"## template: jinja", "text/jinja2"},
	{"#!", "text/x-shellscript"},
}

// joined are user_data of several parts: those given, and config at the end.
func joined(userData, config string) (string, error) {
	var out bytes.Buffer
	parts := multipart.NewWriter(&out)
	sum := sha256.Sum256([]byte(userData + config)) // the same user_data have the same form
	if err := parts.SetBoundary("cloudfn-" + hex.EncodeToString(sum[:])[:40]); err != nil {
		return "", err
	}
	fmt.Fprintf(&out, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", parts.Boundary())
	header, body, err := partOf(userData)
	if err != nil {
		return "", err
	}
	for _, part := range []struct {
		header textproto.MIMEHeader
		body   string
	}{{header, body}, {plainPart("text/cloud-config"), config}} {
		w, err := parts.CreatePart(part.header)
		if err == nil {
			_, err = w.Write([]byte(part.body))
		}
		if err != nil {
			return "", err
		}
	}
	err = parts.Close()
	return out.String(), err
}

func plainPart(contentType string) textproto.MIMEHeader {
	return textproto.MIMEHeader{
		"Content-Type": {contentType + `; charset="utf-8"`}, "Mime-Version": {"1.0"},
		"Content-Transfer-Encoding": {"8bit"},
	}
}

// partOf makes user_data a part of others. If they have several parts already, these are kept in it.
func partOf(userData string) (textproto.MIMEHeader, string, error) {
	for _, known := range contentTypes {
		if strings.HasPrefix(userData, known.prefix) {
			return plainPart(known.contentType), userData, nil
		}
	}
	head, body, ok := strings.Cut(strings.ReplaceAll(userData, "\r\n", "\n"), "\n\n")
	lower := strings.ToLower(head)
	isMultipart := strings.HasPrefix(lower, "content-type:") || strings.HasPrefix(lower, "mime-version:")
	if !ok || !isMultipart {
		return nil, "", apperr.InvalidField("spec.user_data",
			"must begin as cloud-init knows it, such as #cloud-config or #!, beside files of configmaps or containers")
	}
	header := textproto.MIMEHeader{}
	for line := range strings.SplitSeq(strings.NewReplacer("\n ", " ", "\n\t", " ").Replace(head), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		}
	}
	return header, body, nil
}
