package domain

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// LaunchSpec is what one server is made of, with every name resolved to an id. It is kept with the instance,
// so it has no place for user_data or any other secret.
type LaunchSpec struct {
	FlavorID       string            `json:"flavor_id"`
	FlavorName     string            `json:"flavor_name,omitempty"`
	VCPUs          int               `json:"vcpus"` // the flavor's, for quotas and reuse
	RAMMB          int               `json:"ram_mb"`
	DiskGB         int               `json:"disk_gb,omitempty"`
	ImageID        string            `json:"image_id"`
	ImageRef       string            `json:"image,omitempty"` // what an order through a connection calls the image, for reuse
	NetworkIDs     []string          `json:"network_ids"`
	KeyName        string            `json:"key_name,omitempty"`
	SecurityGroups []string          `json:"security_groups,omitempty"`
	Zone           string            `json:"zone,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
}

// Sized notes what the flavor has.
func (s *LaunchSpec) Sized(f Flavor) {
	s.FlavorID, s.FlavorName, s.VCPUs, s.RAMMB, s.DiskGB = f.ID, f.Name, f.VCPUs, f.RAMMB, f.DiskGB
}

// SpecOf is what a server that was there already is made of.
func SpecOf(s Server) LaunchSpec {
	spec := LaunchSpec{
		FlavorName: s.Flavor.Name, VCPUs: s.Flavor.VCPUs, RAMMB: s.Flavor.RAMMB, DiskGB: s.Flavor.DiskGB,
		KeyName: s.KeyName, Zone: s.Zone, Metadata: s.Metadata,
	}
	if s.Image != nil {
		spec.ImageID = s.Image.ID
	}
	return spec
}

// The limits of an order. Nova's own are 255 characters for names and metadata, 128 pairs by quota, and
// 65535 bytes of base64 for user_data.
const (
	MaxInstances  = 100
	MaxNameLength = 255
	MaxUserData   = 65535 / 4 * 3
	MaxNetworks   = 16
	MaxMetadata   = 128
	MaxOrderName  = MaxNameLength - len("-100") // the servers' numbers come behind it
)

// InstanceName is the name of the nth (from 0) of count servers: the name itself for a single one,
// else with its number behind it, as Nova does for several.
func InstanceName(name string, n, count int) string {
	if count == 1 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, n+1)
}

// CheckText refuses text that Nova, Postgres or a log could not carry: empty, too long, or with control
// characters in it.
func CheckText(field, value string, longest int) error {
	if value == "" {
		return apperr.InvalidField(field, "must not be empty")
	}
	if utf8.RuneCountInString(value) > longest {
		return apperr.InvalidField(field, fmt.Sprintf("must have at most %d characters", longest))
	}
	for _, r := range value {
		if unicode.IsControl(r) {
			return apperr.InvalidField(field, "must not contain control characters")
		}
	}
	return nil
}

// CheckName refuses what Nova's API refuses as a name of a server, key pair, security group or zone (the format `name`
// of nova.api.validation.parameter_types, the same from 2.1 to 2.93).
func CheckName(field, value string, longest int) error {
	if err := CheckText(field, value, longest); err != nil {
		return err
	}
	for _, r := range value {
		if !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Zs) || r >= 0xFFFF {
			return apperr.InvalidField(field, fmt.Sprintf("must not contain %+q: Nova takes printable characters up to U+FFFE, so no emoji and nothing invisible", r))
		}
	}
	first, _ := utf8.DecodeRuneInString(value)
	last, _ := utf8.DecodeLastRuneInString(value)
	if unicode.Is(unicode.Zs, first) || unicode.Is(unicode.Zs, last) {
		return apperr.InvalidField(field, "must not begin or end with a space")
	}
	return nil
}

// CheckMetadataKey refuses what Nova's API refuses as a key of metadata.
func CheckMetadataKey(key string) error {
	if err := CheckText("metadata", key, MaxNameLength); err != nil {
		return err
	}
	for _, r := range key {
		if r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_:. ", r) {
			return apperr.InvalidField("metadata."+key, fmt.Sprintf("must not contain %+q: Nova takes ASCII letters, digits, and - _ : . space in a key", r))
		}
	}
	return nil
}

// Check refuses what no cloud would take, before anything is stored. Fields are named as the request names them.
func (s LaunchSpec) Check() error {
	for field, name := range map[string]string{"key_name": s.KeyName, "availability_zone": s.Zone} {
		if name == "" {
			continue
		}
		if err := CheckName(field, name, MaxNameLength); err != nil {
			return err
		}
	}
	if len(s.Metadata) > MaxMetadata {
		return apperr.InvalidField("metadata", fmt.Sprintf("must have at most %d entries", MaxMetadata))
	}
	for k, v := range s.Metadata {
		if err := CheckMetadataKey(k); err != nil {
			return err
		}
		if utf8.RuneCountInString(v) > MaxNameLength {
			return apperr.InvalidField("metadata."+k, fmt.Sprintf("must have at most %d characters", MaxNameLength))
		}
	}
	for _, g := range s.SecurityGroups {
		if err := CheckName("security_groups", g, MaxNameLength); err != nil {
			return err
		}
	}
	return nil
}
