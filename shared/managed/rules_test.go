package managed

import (
	"bufio"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// rulesPage has the table of what happens to each field of a spec.
const rulesPage = "../../docs/declare-servers.md"

// rule is a row of the table for one kind and field.
type rule struct{ change, others string }

// readRules reads the table, by kind and field.
func readRules(t *testing.T) map[domain.Kind]map[string]rule {
	t.Helper()
	page, err := os.Open(rulesPage)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = page.Close() }()
	rules := map[domain.Kind]map[string]rule{}
	isTable := false
	for lines := bufio.NewScanner(page); lines.Scan(); {
		cells := strings.Split(strings.Trim(lines.Text(), "| "), " | ")
		switch {
		case len(cells) == 4 && cells[0] == "Kind":
			isTable = true
		case !isTable || strings.HasPrefix(cells[0], "---"):
		case len(cells) != 4:
			isTable = false
		default:
			for kind := range strings.SplitSeq(strings.ReplaceAll(cells[0], "`", ""), ", ") {
				for field := range strings.SplitSeq(strings.ReplaceAll(cells[1], "`", ""), ", ") {
					of := rules[domain.Kind(kind)]
					if of == nil {
						of = map[string]rule{}
						rules[domain.Kind(kind)] = of
					}
					if _, isTwice := of[field]; isTwice {
						t.Errorf("%s %s has two rows", kind, field)
					}
					of[field] = rule{cells[2], cells[3]}
				}
			}
		}
	}
	return rules
}

// fieldsOf lists the fields of a spec's type, those of lists of objects as <list>.<field>.
func fieldsOf(t reflect.Type) (fields []string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			fields = append(fields, fieldsOf(f.Type)...)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			for inner := range f.Type.Elem().Fields() {
				inner, _, _ := strings.Cut(inner.Tag.Get("json"), ",")
				fields = append(fields, name+"."+inner)
			}
		default:
			fields = append(fields, name)
		}
	}
	return fields
}

// ruled is how a kind is tried: a spec as JSON, another value for each field, and the object that the service shows for
// a spec.
type ruled struct {
	spec   string
	others map[string]string // JSON by field
	more   map[string]string // JSON by field: the value and what others have added to it
	driver Driver
	shown  func(spec json.RawMessage) any
}

const (
	imageOne = "11111111-1111-4111-8111-111111111111"
	imageTwo = "22222222-2222-4222-8222-222222222222"
)

var (
	tried      = uuid.MustParse("33333333-3333-4333-8333-333333333333") // the member
	triedIDs   = map[string]string{"a": imageOne, "b": imageTwo}        // of networks and security groups
	volumesIDs = map[string]string{"data": "volume-1", "more": "volume-2"}
)

// serverOf is the server that Nova shows for a spec.
func serverOf(text json.RawMessage) any {
	spec := read[domain.MachineSpec](text)
	s := domain.Server{
		ID: "server", Name: "thing", Status: "ACTIVE", Flavor: domain.FlavorRef{Name: spec.Flavor},
		Image: &domain.ImageRef{ID: spec.Image}, KeyName: spec.KeyName, Metadata: spec.Metadata,
		Tags: append([]string{tried.String(), markTag}, spec.Tags...),
	}
	if spec.BootVolume != nil {
		s.Image = nil
	}
	port := domain.Port{ID: "port", DeviceID: "server"}
	for _, name := range spec.SecurityGroups {
		port.Groups = append(port.Groups, triedIDs[name])
	}
	for _, name := range spec.Networks {
		port.NetworkID = triedIDs[name]
		s.Ports = append(s.Ports, port)
	}
	s.MadeOf = &domain.LaunchSpec{NetworkIDs: []string{imageOne}, SecurityGroups: []string{imageOne}}
	for _, name := range spec.Volumes {
		s.VolumeIDs = append(s.VolumeIDs, volumesIDs[name])
	}
	return s
}

const machineTried = `"flavor": "a", "image": "` + imageOne + `", "networks": ["a"], "key_name": "a",
	"security_groups": ["a"], "metadata": {"k": "a"}, "tags": ["a"], "volumes": ["data"], "configmaps": ["a"], "count": 2`

var machineRules = ruled{
	spec: "{" + machineTried + "}",
	others: map[string]string{
		"flavor": `"b"`, "image": `"` + imageTwo + `"`, "networks": `["b"]`, "key_name": `"b"`, "security_groups": `["b"]`,
		"metadata": `{"k": "b"}`, "tags": `["b"]`, "volumes": `["more"]`, "configmaps": `["b"]`, "update": `"replace"`,
		"boot_volume": `{"size_gb": 2}`,
		"count":       `3`, "max_unavailable": `2`,
	},
	more: map[string]string{
		"metadata": `{"k": "a", "l": "b"}`, "tags": `["a", "b"]`, "volumes": `["data", "more"]`,
		"networks": `["a", "b"]`, "security_groups": `["a", "b"]`,
	},
	driver: &MachineDriver{}, shown: serverOf,
}

// podRules are those of machineRules, with containers.
var podRules = func() ruled {
	r := machineRules
	r.spec = "{" + machineTried + `, "update": "replace", "containers": [{"name": "a", "image": "a:1"}]}`
	r.others = maps.Clone(r.others)
	maps.Copy(r.others, map[string]string{
		"update": `"replace"`, "restart": `"never"`, "containers.name": `"b"`, "containers.image": `"a:2"`,
		"containers.command": `["b"]`, "containers.args": `["b"]`, "containers.env": `{"B": "b"}`,
		"containers.mounts": `[{"source": "/a", "target": "/b"}]`, "containers.ports": `[{"port": 80}]`, "containers.resources": `{"cpus": 1}`,
	})
	return r
}()

// allRules are all kinds.
var allRules = map[domain.Kind]ruled{
	domain.KindMachine: machineRules, domain.KindDeployment: machineRules,
	domain.KindPod: podRules, domain.KindPodDeployment: podRules,
	domain.KindVolume: {
		spec: `{"size_gb": 1, "type": "a", "image": "a", "zone": "a", "description": "a", "metadata": {"k": "a"}}`,
		others: map[string]string{
			"size_gb": `2`, "type": `"b"`, "image": `"b"`, "zone": `"b"`, "description": `"b"`, "metadata": `{"k": "b"}`,
		},
		more:   map[string]string{"metadata": `{"k": "a", "l": "b"}`},
		driver: VolumeDriver{},
		shown: func(text json.RawMessage) any {
			spec := read[domain.VolumeSpec](text)
			metadata := maps.Clone(spec.Metadata)
			metadata[markKey] = tried.String()
			return domain.Volume{
				Name: "thing", Status: "available", Description: spec.Description, SizeGB: spec.SizeGB, Type: spec.Type,
				Zone: spec.Zone, Metadata: metadata,
			}
		},
	},
	domain.KindImage: {
		spec: `{"disk_format": "raw", "min_disk_gb": 1, "min_ram_mb": 1, "tags": ["a"], "properties": {"k": "a"},
			"content": "YQ=="}`,
		others: map[string]string{
			"disk_format": `"qcow2"`, "container_format": `"ovf"`, "min_disk_gb": `2`, "min_ram_mb": `2`, "tags": `["b"]`,
			"properties": `{"k": "b"}`, "source_url": `"http://b"`, "content": `"Yg=="`,
		},
		more:   map[string]string{"tags": `["a", "b"]`, "properties": `{"k": "a", "l": "b"}`},
		driver: ImageDriver{},
		shown: func(text json.RawMessage) any {
			spec := read[domain.ImageSpec](text)
			content, _ := base64.StdEncoding.DecodeString(spec.Content)
			sum := sha512.Sum512(content)
			i := domain.ImageDetail{
				ContainerFormat: containerFormat(spec), Tags: append(memberTags(tried), spec.Tags...),
				Properties: spec.Properties, SHA512: hex.EncodeToString(sum[:]),
			}
			i.Name, i.Status, i.DiskFormat, i.MinDiskGB, i.MinRAMMB =
				"thing", "active", spec.DiskFormat, spec.MinDiskGB, spec.MinRAMMB
			return i
		},
	},
	domain.KindBalancer: {
		spec: `{"network": "a", "address": "192.0.2.1", "listeners": [{"protocol": "TCP", "port": 80, "member_port": 80,
			"addresses": ["192.0.2.2"]}]}`,
		others: map[string]string{
			"network": `"b"`, "address": `"192.0.2.9"`, "listeners.protocol": `"HTTP"`, "listeners.port": `81`,
			"listeners.algorithm": `"SOURCE_IP"`, "listeners.member_port": `81`, "listeners.deployment": `"web"`,
			"listeners.machines": `["one"]`, "listeners.pods": `"apps"`, "listeners.addresses": `["192.0.2.3"]`,
		},
		driver: NewBalancerDriver(),
		shown: func(text json.RawMessage) any {
			spec := read[domain.BalancerSpec](text)
			b := loadBalancer{network: spec.Network}
			b.Name, b.Status, b.Address, b.Tags = "thing", "ACTIVE", spec.Address, memberTags(tried)
			for _, l := range spec.Listeners {
				one := declaredListener(l)
				one.Pool.Members, _ = triedInventory().poolMembers(l, spec.Network)
				b.Listeners = append(b.Listeners, one)
			}
			return b
		},
	},
	domain.KindSecret: {
		spec: `{}`, others: map[string]string{"content_type": `"application/octet-stream"`}, driver: SecretDriver{},
		shown: func(text json.RawMessage) any {
			return domain.StoredSecret{Status: "ACTIVE", ContentType: read[domain.SecretSpec](text).ContentType}
		},
	},
	domain.KindConfigmap: {
		spec: `{"data": {"a": "b"}}`, others: map[string]string{"data": `{"a": "c"}`}, driver: ConfigmapDriver{},
		shown: func(json.RawMessage) any { return nil },
	},
}

// triedInventory has a volume for each name, a deployment and a server.
func triedInventory() Inventory {
	var resources []domain.Managed
	objects := map[uuid.UUID]Object{}
	add := func(kind domain.Kind, name string, o Object) {
		member := domain.Member{ID: uuid.New()}
		objects[member.ID] = o
		resources = append(resources, domain.Managed{Kind: kind, Name: name, Members: []domain.Member{member}})
	}
	for name, id := range volumesIDs {
		add(domain.KindVolume, name, Object{ID: id, State: ObjectReady})
	}
	for kind, name := range map[domain.Kind]string{
		domain.KindDeployment: "web", domain.KindMachine: "one", domain.KindPodDeployment: "apps",
	} {
		ip := "192.0.2." + map[string]string{"web": "4", "one": "5", "apps": "6"}[name]
		add(kind, name, Object{State: ObjectReady, Raw: domain.Server{
			Status: "ACTIVE", Addresses: []domain.Address{{Network: "a", IP: ip, Version: 4, Type: "fixed"}},
		}})
	}
	return NewInventory(resources, objects)
}

// with is a spec with another value for a field.
func with(t *testing.T, spec, field, value string) json.RawMessage {
	t.Helper()
	all := map[string]any{}
	if err := json.Unmarshal([]byte(spec), &all); err != nil {
		t.Fatal(err)
	}
	in := all
	if list, inner, isInner := strings.Cut(field, "."); isInner {
		in, field = all[list].([]any)[0].(map[string]any), inner
	}
	if field != "" {
		in[field] = json.RawMessage(value)
	}
	return asJSON(t, all)
}

// differ returns the differences of an object that is shown for one spec and was made of another one, from a third.
func (r ruled) differ(declared, made, shown json.RawMessage, change ...func(*domain.Managed)) []Difference {
	in := Desired{
		Resource: domain.Managed{ID: uuid.New(), Name: "thing", Revision: 2, Digest: []byte("a")},
		Member:   domain.Member{ID: tried, Revision: 2}, Name: "thing", Inventory: triedInventory(), Spec: declared,
		Made: domain.Revision{Number: 2, Spec: made, Digest: []byte("a")},
	}
	for _, change := range change {
		change(&in.Resource)
	}
	if string(declared) != string(made) || len(change) > 0 {
		in.Made.Number = 1
	}
	return r.driver.Differences(in, Object{Name: "thing", State: ObjectReady, Raw: r.shown(shown)})
}

// beside are fields that are not in the type of a spec, with what changes them.
var beside = map[string]func(*domain.Managed){
	"user_data": func(m *domain.Managed) { m.Digest = []byte("b") },
	"payload":   func(m *domain.Managed) { m.Digest = []byte("b") },
	"schedule":  func(m *domain.Managed) { m.Schedule.Zone = "b" },
}

// said is a set of differences in the words of the table.
func said(all []Difference) (change, others string) {
	if len(all) == 0 {
		return "none", "kept"
	}
	is := func(test func(Difference) bool) bool {
		return !slices.ContainsFunc(all, func(d Difference) bool { return !test(d) })
	}
	others = "drift"
	if is(func(d Difference) bool { return d.Follows }) {
		others = "put back"
	}
	switch way := all[0].Way; {
	case !is(func(d Difference) bool { return d.Way == way }):
		return "mixed", others
	case way == OnlyNew:
		return "for new servers", others
	case way == Refused:
		return "refused", others
	case way == Replace:
		return "replaced", others
	case is(func(d Difference) bool { return d.Disrupts }):
		return "in place, interrupts", others
	}
	return "in place", others
}

// TestRules: the page says of every field of every kind what happens when its declaration changes, and when others
// change it in OpenStack, as the drivers do it. A cell begins with the word that is checked; behind a semicolon or in
// brackets may be more.
func TestRules(t *testing.T) {
	t.Parallel()
	rules := readRules(t)
	specs := map[domain.Kind]reflect.Type{
		domain.KindMachine:       reflect.TypeFor[domain.MachineSpec](),
		domain.KindDeployment:    reflect.TypeFor[domain.DeploymentSpec](),
		domain.KindPod:           reflect.TypeFor[domain.PodSpec](),
		domain.KindPodDeployment: reflect.TypeFor[domain.PodDeploymentSpec](),
		domain.KindVolume:        reflect.TypeFor[domain.VolumeSpec](),
		domain.KindImage:         reflect.TypeFor[domain.ImageSpec](),
		domain.KindBalancer:      reflect.TypeFor[domain.BalancerSpec](),
		domain.KindSecret:        reflect.TypeFor[domain.SecretSpec](),
		domain.KindConfigmap:     reflect.TypeFor[domain.ConfigmapSpec](),
	}
	for kind, spec := range specs {
		tryKind(t, kind, fieldsOf(spec), rules[kind])
	}
	if len(rules) != len(specs) {
		t.Errorf("the table has the kinds %v", slices.Sorted(maps.Keys(rules)))
	}
}

// TestUnknownRevision: what an object was made of is not known when its revision was pruned. Nothing that only a
// revision shows differs then.
func TestUnknownRevision(t *testing.T) {
	t.Parallel()
	for kind, r := range allRules {
		spec := with(t, r.spec, "", "")
		in := Desired{
			Resource: domain.Managed{
				ID: uuid.New(), Name: "thing", Revision: 4, Digest: []byte("a"),
				Schedule: domain.Schedule{Zone: "z"},
			},
			Member: domain.Member{ID: tried, Revision: 2}, Name: "thing", Inventory: triedInventory(), Spec: spec,
		}
		o := Object{Name: "thing", State: ObjectReady, Raw: r.shown(spec)}
		if left := r.driver.Differences(in, o); len(left) > 0 {
			t.Errorf("%s differs from an unknown revision: %+v", kind, left)
		}
	}
}

func tryKind(t *testing.T, kind domain.Kind, fields []string, rules map[string]rule) {
	t.Helper()
	r := allRules[kind]
	base := with(t, r.spec, "", "")
	if left := r.differ(base, base, base); len(left) > 0 {
		t.Errorf("%s differs from itself: %+v", kind, left)
	}
	for field := range rules {
		if beside[field] == nil && !slices.Contains(fields, field) {
			t.Errorf("%s has no field %s", kind, field)
		}
	}
	isServer := kind.IsServer()
	switch {
	case isServer:
		fields = append(fields, "user_data", "schedule")
	case kind == domain.KindSecret:
		fields = append(fields, "payload")
	}
	for _, field := range fields {
		want, isRuled := rules[field]
		value, isTried := r.others[field]
		if !isRuled || !isTried && beside[field] == nil {
			t.Errorf("%s %s: it has a row: %t, it has another value: %t", kind, field, isRuled, isTried)
			continue
		}
		other, changes := base, []func(*domain.Managed){}
		if isTried {
			other = with(t, r.spec, field, value)
		} else {
			changes = append(changes, beside[field])
		}
		change, _ := said(r.differ(other, base, base, changes...))
		if kind == domain.KindConfigmap { // the servers that name it differ
			change, _ = said(differWithFile(domain.UpdateInPlace))
			if again, _ := said(differWithFile(domain.UpdateReplace)); again == "replaced" {
				change += "; replaced with `update: replace`"
			}
		}
		if isServer {
			replacing := with(t, string(other), "update", `"replace"`)
			if again, _ := said(r.differ(replacing, base, base, changes...)); again == "replaced" && again != change {
				change += "; replaced with `update: replace`"
			}
		}
		_, others := said(r.differ(base, base, other))
		if more, ok := r.more[field]; ok {
			if _, added := said(r.differ(base, base, with(t, r.spec, field, more))); added == "kept" {
				others += "; what others add is kept"
			}
		}
		if !means(want.change, change) || !means(want.others, others) {
			t.Errorf("%s %s: the page has %q and %q, it is %q and %q",
				kind, field, want.change, want.others, change, others)
		}
	}
}

// differWithFile returns the differences of a server after its configmap has changed.
func differWithFile(update string) []Difference {
	in, o := withFile(update, "two")
	return (&MachineDriver{}).Differences(in, o)
}

// means reports whether a cell says what is so. Notes in brackets are not compared; "none" and "kept" have other words.
func means(cell, is string) bool {
	cell, _, _ = strings.Cut(cell, " (")
	switch is {
	case "none":
		return slices.Contains([]string{"at the next change", "servers are added or deleted", "in the endpoints"}, cell)
	case "kept":
		return slices.Contains([]string{"kept", "not shown", "cannot"}, cell)
	}
	return cell == is
}
