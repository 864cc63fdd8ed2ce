package managed

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/httpx"
)

// Spec is what a resource is declared to be: a MachineSpec, DeploymentSpec, VolumeSpec, ..., by its kind.
type Spec json.RawMessage

// Schema implements huma.SchemaProvider.
func (Spec) Schema(r huma.Registry) *huma.Schema {
	kinds := []*huma.Schema{}
	for _, kind := range slices.Sorted(maps.Keys(specTypes)) {
		kinds = append(kinds, r.Schema(specTypes[kind], true, ""))
	}
	// A template has only some fields, and the kind decides: checkSpec says what is wrong.
	anything := &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
	return httpx.SharedSchema(r, "Spec", huma.Schema{
		Type: huma.TypeObject, AdditionalProperties: true, AnyOf: append(kinds, anything),
	})
}

// MarshalJSON implements json.Marshaler.
func (s Spec) MarshalJSON() ([]byte, error) { return json.RawMessage(s).MarshalJSON() }

// UnmarshalJSON implements json.Unmarshaler.
func (s *Spec) UnmarshalJSON(text []byte) error { return (*json.RawMessage)(s).UnmarshalJSON(text) }

// MachineSpec declares a server.
type MachineSpec struct {
	Flavor         string            `json:"flavor" minLength:"1" maxLength:"255" doc:"Id or unique name, of Nova's."`
	Image          string            `json:"image" minLength:"1" maxLength:"255" doc:"Id or unique name."`
	Networks       []string          `json:"networks" minItems:"1" maxItems:"20" doc:"Ids or unique names."`
	KeyName        string            `json:"key_name,omitempty" maxLength:"255"`
	SecurityGroups []string          `json:"security_groups,omitempty" maxItems:"50"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	Tags           []string          `json:"tags,omitempty" maxItems:"40" uniqueItems:"true"`
	Volumes        []string          `json:"volumes,omitempty" maxItems:"20" doc:"Managed volumes, to attach."`
	Configmaps     []string          `json:"configmaps,omitempty" maxItems:"20" doc:"Managed files."`
	Update         string            `json:"update,omitempty" enum:"in_place,replace"`
	UserData       *string           `json:"user_data,omitempty" writeOnly:"true" maxLength:"49149"`
	UserDataBase64 *string           `json:"user_data_base64,omitempty" writeOnly:"true"`
}

// DeploymentSpec declares a number of equal servers.
type DeploymentSpec struct {
	MachineSpec

	Count          int  `json:"count" minimum:"0" maximum:"100" doc:"How many servers."`
	MaxUnavailable *int `json:"max_unavailable,omitempty" minimum:"0" maximum:"100"`
}

// VolumeSpec declares a volume.
type VolumeSpec struct {
	SizeGB      int               `json:"size_gb" minimum:"1" maximum:"1000000" doc:"It may grow, and never shrinks."`
	Type        string            `json:"type,omitempty" maxLength:"255" doc:"Of Cinder's volume types."`
	Image       string            `json:"image,omitempty" maxLength:"255" doc:"What it is filled with when it is made."`
	Zone        string            `json:"zone,omitempty" maxLength:"255" doc:"The availability zone."`
	Description string            `json:"description,omitempty" maxLength:"255"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// ImageSpec declares an image.
type ImageSpec struct {
	DiskFormat      string            `json:"disk_format" enum:"raw,qcow2,vmdk,vdi,vhd,vhdx,iso,ami,ari,aki,ploop"`
	ContainerFormat string            `json:"container_format,omitempty" enum:"bare,ovf,ova,docker,ami,ari,aki"`
	MinDiskGB       int               `json:"min_disk_gb,omitempty" minimum:"0" maximum:"1000000"`
	MinRAMMB        int               `json:"min_ram_mb,omitempty" minimum:"0" maximum:"100000000"`
	Tags            []string          `json:"tags,omitempty" maxItems:"50" uniqueItems:"true"`
	Properties      map[string]string `json:"properties,omitempty"`
	SourceURL       string            `json:"source_url,omitempty" maxLength:"2048" doc:"Glance downloads it."`
	Content         string            `json:"content,omitempty" maxLength:"131072" doc:"Base64; small images only."`
}

// BalancerSpec declares a load balancer.
type BalancerSpec struct {
	Network   string         `json:"network" minLength:"1" maxLength:"255" doc:"Of its address: id or unique name."`
	Address   string         `json:"address,omitempty" maxLength:"64" doc:"A free one of the network."`
	Listeners []ListenerSpec `json:"listeners" minItems:"1" maxItems:"20"`
}

// ListenerSpec declares a port of a load balancer, and where its requests go.
type ListenerSpec struct {
	Protocol   string   `json:"protocol" enum:"TCP,UDP,HTTP"`
	Port       int      `json:"port" minimum:"1" maximum:"65535"`
	Algorithm  string   `json:"algorithm,omitempty" enum:"ROUND_ROBIN,LEAST_CONNECTIONS,SOURCE_IP"`
	MemberPort int      `json:"member_port" minimum:"1" maximum:"65535" doc:"Of the servers."`
	Deployment string   `json:"deployment,omitempty" maxLength:"63" doc:"A managed one: all of its servers."`
	Machines   []string `json:"machines,omitempty" maxItems:"50" uniqueItems:"true" doc:"Managed servers."`
	Addresses  []string `json:"addresses,omitempty" maxItems:"50" uniqueItems:"true" doc:"Others, by IP address."`
}

// SecretSpec declares a secret.
type SecretSpec struct {
	ContentType string  `json:"content_type,omitempty" maxLength:"255" doc:"text/plain by default."`
	Payload     *string `json:"payload,omitempty" writeOnly:"true" maxLength:"20000"`
}

// ConfigmapSpec declares files for servers.
type ConfigmapSpec struct {
	Data map[string]string `json:"data"`
}
