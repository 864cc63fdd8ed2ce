package openstack

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/remoteconsoles"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// server is a Nova server, with only what we show. gophercloud's pager decodes each page four times and
// every attribute with it: about 17 times the work.
type server struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Status    string    `json:"status"`
	Tenant    string    `json:"tenant_id"`
	User      string    `json:"user_id"`
	Created   time.Time `json:"created"`
	Updated   time.Time `json:"updated"`
	Zone      string    `json:"OS-EXT-AZ:availability_zone"`
	VMState   string    `json:"OS-EXT-STS:vm_state"`
	Task      string    `json:"OS-EXT-STS:task_state"`
	Locked    bool      `json:"locked"`
	Host      string    `json:"OS-EXT-SRV-ATTR:host"`
	HostID    string    `json:"hostId"`
	Launched  naiveTime `json:"OS-SRV-USG:launched_at"`
	Ended     naiveTime `json:"OS-SRV-USG:terminated_at"`
	KeyName   string    `json:"key_name"`
	Tags      []string  `json:"tags"`
	Addresses map[string][]struct {
		Addr    string `json:"addr"`
		Version int    `json:"version"`
		Type    string `json:"OS-EXT-IPS:type"`
	} `json:"addresses"`
	Flavor *struct {
		Name  string          `json:"original_name"`
		VCPUs int             `json:"vcpus"`
		RAM   int             `json:"ram"`
		Disk  int             `json:"disk"`
		Specs json.RawMessage `json:"extra_specs"` // only explained decodes it
	} `json:"flavor"`
	Image    imageRef        `json:"image"`
	Metadata json.RawMessage `json:"metadata"` // only MarkedServers decodes it
	Volumes  []struct {
		ID string `json:"id"`
	} `json:"os-extended-volumes:volumes_attached"`
	Fault *struct {
		Code    int       `json:"code"`
		Message string    `json:"message"`
		Created time.Time `json:"created"`
	} `json:"fault"`
}

// imageRef is {"id": ...}, or "" for a server that boots from a volume.
type imageRef struct{ ID string }

// UnmarshalJSON reads either form. It runs once for every server of a page, so it does not parse twice: an id has
// no quotes in it.
func (i *imageRef) UnmarshalJSON(data []byte) error {
	_, after, _ := bytes.Cut(data, []byte(`"id"`))
	if id, ok := bytes.CutPrefix(bytes.TrimLeft(after, ": \t\r\n"), []byte(`"`)); ok { // not null
		id, _, _ = bytes.Cut(id, []byte(`"`))
		i.ID = string(id)
	}
	return nil
}

// naiveTime is Nova's time without a zone, which is UTC; null is the zero time.
type naiveTime struct{ time.Time }

// UnmarshalJSON reads Nova's form.
func (t *naiveTime) UnmarshalJSON(data []byte) error {
	text, err := strconv.Unquote(string(data))
	if err != nil || text == "" {
		return nil //nolint:nilerr // null
	}
	t.Time, err = time.Parse("2006-01-02T15:04:05", text)
	return err
}

func (s *server) domain() domain.Server {
	out := domain.Server{
		ID: s.ID, Name: s.Name, Status: s.Status, Addresses: []domain.Address{}, Zone: s.Zone, KeyName: s.KeyName,
		CreatedAt: s.Created, UpdatedAt: s.Updated, Tags: s.Tags, Partial: s.Status == "UNKNOWN",
		ProjectID: s.Tenant, UserID: s.User, Task: s.Task, Locked: s.Locked, Host: s.Host, HostID: s.HostID,
		Launched: !s.Launched.IsZero(),
	}
	if out.UpdatedAt.IsZero() { // Nova does not know it of a server whose cell is down
		out.UpdatedAt = out.CreatedAt
	}
	networks := make([]string, 0, len(s.Addresses))
	for n := range s.Addresses {
		networks = append(networks, n)
	}
	slices.Sort(networks)
	for _, n := range networks {
		for _, a := range s.Addresses[n] {
			address := domain.Address{Network: n, IP: a.Addr, Version: a.Version, Type: a.Type}
			out.Addresses = append(out.Addresses, address)
		}
	}
	if s.Flavor != nil {
		out.Flavor = domain.FlavorRef{
			Name: s.Flavor.Name, VCPUs: s.Flavor.VCPUs, RAMMB: s.Flavor.RAM, DiskGB: s.Flavor.Disk,
		}
	}
	if s.Image.ID != "" {
		out.Image = &domain.ImageRef{ID: s.Image.ID}
	}
	if s.Fault != nil {
		message := s.explained(clean(s.Fault.Message))
		out.Fault = &domain.Fault{Code: s.Fault.Code, Message: message, Created: s.Fault.Created}
	}
	return out
}

// listQuery is the query of a page.
func listQuery(q domain.ServerQuery) url.Values {
	query := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	if q.Marker != "" {
		query.Set("marker", q.Marker)
	}
	if q.Status != "" {
		query.Set("status", q.Status)
	}
	if q.Name != "" {
		query.Set("name", pattern(q.Name))
	}
	for key, value := range map[string]string{
		"ip": pattern(q.IP), "flavor": q.Flavor.ID, "image": q.Image, "host": q.Host,
	} {
		if value != "" {
			query.Set(key, value)
		}
	}
	if !q.ChangedSince.IsZero() {
		query.Set("changes-since", q.ChangedSince.UTC().Format(time.RFC3339))
	}
	if key, isDescending := strings.CutPrefix(string(q.Sort), "-"); key != "" {
		query.Set("sort_key", strings.Replace(key, "name", "display_name", 1))
		if query.Set("sort_dir", "asc"); isDescending {
			query.Set("sort_dir", "desc")
		}
	}
	if len(q.Tags) > 0 {
		query.Set("tags-any", strings.Join(q.Tags, ","))
	}
	return query
}

// pattern returns the regular expression of the names that contain a text, for Nova to hand to its database. Nova puts
// another backslash before each |. A database with old defaults rejects characters of four bytes, and one that compares
// bytes takes them for four: the pattern also matches other characters in their place.
func pattern(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '|':
			out.WriteString("[|]")
		case r > maxThreeBytes:
			out.WriteString(".{1,4}")
		default:
			out.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	return out.String()
}

// maxThreeBytes is the last character that takes three bytes in UTF-8.
const maxThreeBytes = '\uFFFF'

// Server reads one server. One whose cell is down comes with Partial set and the status UNKNOWN.
func (s *Session) Server(ctx context.Context, id string) (domain.Server, error) {
	var body struct {
		Server struct {
			server
			Metadata       map[string]string       `json:"metadata"`
			Description    string                  `json:"description"` // null without one
			SecurityGroups []struct{ Name string } `json:"security_groups"`
			ServerGroups   []string                `json:"server_groups"`
		} `json:"server"`
	}
	err := s.getNova(ctx, computeServerGroups, &body, "servers", id)
	found := body.Server.domain()
	found.Metadata, found.Description = body.Server.Metadata, body.Server.Description
	for _, group := range body.Server.SecurityGroups { // of each port
		if !slices.Contains(found.SecurityGroups, group.Name) {
			found.SecurityGroups = append(found.SecurityGroups, group.Name)
		}
	}
	for _, group := range body.Server.ServerGroups {
		found.ServerGroups = append(found.ServerGroups, domain.ServerGroup{ID: group})
	}
	for _, v := range body.Server.Volumes {
		found.VolumeIDs = append(found.VolumeIDs, v.ID)
		found.Volumes = append(found.Volumes, domain.VolumeRef{ID: v.ID})
	}
	return found, err
}

// CreateServer creates one server, with the tags in the same call, and returns its id. A failure that
// is neither a rejection nor apperr.ErrNotSent leaves it open whether the server exists: look it up by tag.
func (s *Session) CreateServer(
	ctx context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string,
) (string, error) {
	nova, err := s.compute(ctx, versionFor(computeCreateTags, spec.Volumes...))
	if err != nil {
		return "", err
	}
	opts := servers.CreateOpts{
		Name: name, ImageRef: imageOf(spec), FlavorRef: spec.FlavorID, SecurityGroups: spec.SecurityGroups,
		AvailabilityZone: spec.Zone, Metadata: spec.Metadata, Tags: tags, BlockDevice: devices(spec),
	}
	networks := make([]servers.Network, len(spec.NetworkIDs))
	for i, id := range spec.NetworkIDs {
		networks[i].UUID = id
	}
	if len(spec.Attachments) > 0 {
		networks = nil
	}
	for _, a := range spec.Attachments {
		networks = append(networks, servers.Network{UUID: a.NetworkID, Port: a.PortID, FixedIP: a.FixedIP})
	}
	opts.Networks = networks
	if userData != "" {
		// Always encoded here: gophercloud takes plain text that looks like base64 for base64.
		opts.UserData = []byte(encoded(userData))
	}
	if spec.ConfigDrive {
		opts.ConfigDrive = &spec.ConfigDrive
	}
	created, err := servers.Create(ctx, nova, createBody{opts, spec}, hintsOf(spec)).Extract()
	if err != nil {
		return "", classify("nova", err)
	}
	if created.ID == "" {
		return "", apperr.New(apperr.BadGateway, "nova accepted a server without giving its id")
	}
	return created.ID, nil
}

// encoded is user_data as Nova takes it.
func encoded(userData domain.Secret) string {
	return base64.StdEncoding.EncodeToString([]byte(userData.Reveal()))
}

// hintsOf are the scheduler hints of a server; nil = none.
func hintsOf(spec domain.LaunchSpec) servers.SchedulerHintOptsBuilder {
	all := schedulerHints{}
	maps.Copy(all, spec.Hints)
	if spec.ServerGroup != "" {
		all["group"] = spec.ServerGroup
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// schedulerHints are hints as Nova takes them: gophercloud's own type rejects some.
type schedulerHints map[string]any

// ToSchedulerHintsMap is what gophercloud sends.
func (h schedulerHints) ToSchedulerHintsMap() (map[string]any, error) {
	return map[string]any{"os:scheduler_hints": map[string]any(h)}, nil
}

// createBody adds to a create call what gophercloud's type lacks.
type createBody struct {
	servers.CreateOpts
	spec domain.LaunchSpec
}

// ToServerCreateMap is what gophercloud sends.
func (c createBody) ToServerCreateMap() (map[string]any, error) {
	body, err := c.CreateOpts.ToServerCreateMap()
	if err != nil {
		return nil, err
	}
	server := body["server"].(map[string]any) //nolint:forcetypeassert // gophercloud's own shape
	for field, value := range map[string]string{"key_name": c.spec.KeyName, "description": c.spec.Description} {
		if value != "" {
			server[field] = value
		}
	}
	return body, nil
}

// ConsoleLog returns about the last lines of a server's console log: some drivers return more. It is NotFound for a
// server without a console, and a Conflict before the server has a host.
func (s *Session) ConsoleLog(ctx context.Context, id string, lines int) (string, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return "", err
	}
	opts := servers.ShowConsoleOutputOpts{Length: lines + 1} // Nova counts the text after the last newline
	output, err := servers.ShowConsoleOutput(ctx, nova, id, opts).Extract()
	return output, classify("nova", err)
}

// consoleProtocols are Nova's protocols of the types of remote consoles.
var consoleProtocols = map[domain.ConsoleType]remoteconsoles.ConsoleProtocol{
	domain.ConsoleNoVNC: remoteconsoles.ConsoleProtocolVNC, domain.ConsoleSPICE: remoteconsoles.ConsoleProtocolSPICE,
	domain.ConsoleRDP: remoteconsoles.ConsoleProtocolRDP, domain.ConsoleSerial: remoteconsoles.ConsoleProtocolSerial,
	domain.ConsoleWebMKS: remoteconsoles.ConsoleProtocolMKS,
}

// RemoteConsole has Nova make a URL of a server's console, with a token that expires. It is Invalid when the cloud does
// not offer the type, and a Conflict before the server has a host.
func (s *Session) RemoteConsole(ctx context.Context, id string, kind domain.ConsoleType) (domain.Secret, error) {
	version := computeConsoles
	if kind == domain.ConsoleWebMKS {
		version = computeConsolesMKS
	}
	nova, err := s.compute(ctx, version)
	if err != nil {
		return "", err
	}
	console, err := remoteconsoles.Create(ctx, nova, id, remoteconsoles.CreateOpts{
		Protocol: consoleProtocols[kind], Type: remoteconsoles.ConsoleType(kind),
	}).Extract()
	switch {
	case err != nil:
		return "", classify("nova", err)
	case console.URL == "":
		return "", apperr.New(apperr.BadGateway, "nova made a console without giving its URL")
	}
	return domain.Secret(console.URL), nil
}
