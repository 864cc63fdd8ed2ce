package managed

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	engine "github.com/cloudfn/cloudfn/shared/managed"
)

// meaning are the faults that no schema can describe.
func meaning(spec any) (faults []apperr.Field) {
	fault := func(field, detail string) {
		faults = append(faults, apperr.Field{Field: "spec." + field, Detail: detail})
	}
	switch s := spec.(type) {
	case *MachineSpec:
		checkMachine(*s, fault)
	case *DeploymentSpec:
		checkMachine(s.MachineSpec, fault)
		if s.MaxUnavailable != nil && *s.MaxUnavailable > s.Count {
			fault("max_unavailable", fmt.Sprintf("must be at most the count, %d", s.Count))
		}
		if len(s.Volumes) > 0 {
			fault("volumes", "cannot be combined with this kind, because a volume is attached to one server: declare "+
				"a VirtualMachine")
		}
	case *VolumeSpec:
		checkTexts("metadata", s.Metadata, fault)
	case *ImageSpec:
		checkImage(*s, fault)
	case *BalancerSpec:
		checkBalancer(*s, fault)
	case *ConfigmapSpec:
		checkFiles(s.Data, fault)
	}
	return faults
}

func checkMachine(s MachineSpec, fault func(field, detail string)) {
	checkTexts("metadata", s.Metadata, fault)
	for _, f := range slices.Concat(domain.CheckMetadata("metadata", s.Metadata), domain.CheckTags("tags", s.Tags)) {
		fault(f.Field, f.Detail)
	}
	for n, tag := range s.Tags {
		if strings.ContainsAny(tag, "?#%") { // a tag that is added is a part of the path
			fault(fmt.Sprintf("tags[%d]", n), "must have none of ? # %")
		}
	}
	for field, names := range map[string][]string{"volumes": s.Volumes, "configmaps": s.Configmaps} {
		for n, name := range names {
			if !nameForm.MatchString(name) {
				fault(fmt.Sprintf("%s[%d]", field, n), nameRule)
			}
		}
	}
}

// checkTexts checks values as Nova, Cinder and Glance do.
func checkTexts(field string, texts map[string]string, fault func(field, detail string)) {
	if len(texts) > domain.MaxMetadata {
		fault(field, fmt.Sprintf("must have %d entries or fewer", domain.MaxMetadata))
	}
	for key, value := range texts {
		if len(key) == 0 || len(key) > domain.MaxNameLength || len([]rune(value)) > domain.MaxNameLength {
			fault(field, fmt.Sprintf("must have keys and values of at most %d characters", domain.MaxNameLength))
			return
		}
	}
}

func checkImage(s ImageSpec, fault func(field, detail string)) {
	checkTexts("properties", s.Properties, fault)
	keys := slices.Sorted(maps.Keys(s.Properties))
	for n, key := range keys {
		if same := domain.EqualInTables(key, keys[:n]); same >= 0 {
			fault("properties."+key, fmt.Sprintf("is the same as %q for Glance, which ignores case", keys[same]))
		}
	}
	switch u, err := url.Parse(s.SourceURL); {
	case (s.SourceURL == "") == (s.Content == ""):
		fault("source_url", "or content is needed, and not both")
	case s.SourceURL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https"):
		fault("source_url", "must be an http or https URL")
	}
	if _, err := base64.StdEncoding.DecodeString(s.Content); err != nil {
		fault("content", "must be base64")
	}
}

func checkBalancer(s BalancerSpec, fault func(field, detail string)) {
	if _, err := netip.ParseAddr(s.Address); s.Address != "" && err != nil {
		fault("address", "must be an IP address")
	}
	ports := map[string]int{}
	for n, l := range s.Listeners {
		field := func(name string) string { return fmt.Sprintf("listeners[%d].%s", n, name) }
		port := fmt.Sprintf("%v/%d", l.Protocol == "UDP", l.Port) // a UDP port may have the number of a TCP port
		if first, isTaken := ports[port]; isTaken {
			fault(field("port"), fmt.Sprintf("is the one of listeners[%d], too", first))
		} else {
			ports[port] = n
		}
		if l.Deployment == "" && len(l.Machines) == 0 && len(l.Addresses) == 0 {
			fault(field("deployment"), "is missing: give it, machines or addresses")
		}
		for m, address := range l.Addresses {
			if _, err := netip.ParseAddr(address); err != nil {
				fault(fmt.Sprintf("%s[%d]", field("addresses"), m), "must be an IP address")
			}
		}
	}
}

// checkFiles checks that a server can have the files: they are part of its user_data, in base64.
func checkFiles(files map[string]string, fault func(field, detail string)) {
	for name := range files {
		if name == "" || len(name) > domain.MaxNameLength {
			fault("data", fmt.Sprintf("must have file names of 1 to %d characters", domain.MaxNameLength))
		}
	}
	longest := strings.Repeat("x", maxName) // the resource's name is a part of their paths
	if _, err := engine.WithFiles("", engine.Files(longest, domain.ConfigmapSpec{Data: files})); err != nil {
		fault("data", fmt.Sprintf("does not fit in a server's user_data, which has at most %d bytes and holds the "+
			"files in base64", domain.MaxUserData))
	}
}
