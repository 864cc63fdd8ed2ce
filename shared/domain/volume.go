package domain

import "time"

// Volume is a volume of Cinder.
type Volume struct {
	ID          string
	Name        string
	Description string
	Status      string // Cinder's, raw
	SizeGB      int
	Type        string // the name of its type
	Zone        string
	Metadata    map[string]string
	Servers     []string // that it is attached to
	// IsMultiattach says that several servers may have it.
	IsMultiattach bool
	CreatedAt     time.Time
	UpdatedAt     time.Time // the same until its first change
}

// VolumeRequest says what a volume is to be.
type VolumeRequest struct {
	Name        string
	Description string
	SizeGB      int
	Type        string // "" = Cinder's default
	ImageID     string // that it is filled with; "" = none
	Zone        string // "" = Cinder's choice
	Metadata    map[string]string
}

// ImageDetail is an image with what its owner may change.
type ImageDetail struct {
	Image

	OwnerID         string
	ContainerFormat string
	Tags            []string
	Properties      map[string]string
	SHA512          string // of its content, in hexadecimal; "" = not known
	IsImporting     bool   // Glance is fetching its content
	FailedImport    bool   // Glance could not
	CreatedAt       time.Time
	UpdatedAt       time.Time
}

// ImageRequest says what an image is to be.
type ImageRequest struct {
	Name            string
	DiskFormat      string
	ContainerFormat string
	MinDiskGB       int
	MinRAMMB        int
	Tags            []string
	Properties      map[string]string
}

// ImageChange is a change of an image; what is nil stays.
type ImageChange struct {
	Name      *string
	MinDiskGB *int
	MinRAMMB  *int
	Tags      []string          // all of them
	Set       map[string]string // properties
	Remove    []string          // names of properties
}

// StoredSecret is a secret of Barbican, without its payload.
type StoredSecret struct {
	ID          string
	Name        string
	Status      string
	ContentType string
	CreatedAt   time.Time
}
