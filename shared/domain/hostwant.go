package domain

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// traitName and maxTrait are Placement's rule.
var traitName = regexp.MustCompile(`^[A-Z0-9_]+$`)

const maxTrait = 255

// Validate checks what can be checked without the hosts. field is the path of w in the request; "" = its fields are at
// the top.
func (w HostWant) Validate(field string) error {
	if field != "" {
		field += "."
	}
	if w.Min < 1 {
		return apperr.InvalidField(field+"min", fmt.Sprintf("is %d: must be 1 or more", w.Min))
	}
	if w.Max < w.Min {
		return apperr.InvalidField(field+"max", fmt.Sprintf("is %d: must be min, %d, or more", w.Max, w.Min))
	}
	for name, size := range map[string]int{"vcpus": w.VCPUs, "ram_mb": w.RAMMB, "disk_gb": w.DiskGB} {
		if size < 0 {
			return apperr.InvalidField(field+name, fmt.Sprintf("is %d: must be 0 or more", size))
		}
	}
	for n, trait := range w.Traits {
		if len(trait) > maxTrait || !traitName.MatchString(trait) {
			return apperr.Malformed(fmt.Sprintf("%straits[%d]", field, n),
				"a trait's name of capital letters, digits and _, such as HW_CPU_X86_AVX2", trait)
		}
	}
	for n, text := range w.Capabilities {
		if _, err := ParseCapability(fmt.Sprintf("%scapabilities[%d]", field, n), text); err != nil {
			return err
		}
	}
	return nil
}

// Matches reports whether a node has what is wanted, whether it is up and free or not. An expression that does not
// parse matches no node.
func (w HostWant) Matches(n Node) bool {
	if w.Region != "" && w.Region != n.Region || w.Zone != "" && w.Zone != n.Zone ||
		n.VCPUs < w.VCPUs || n.RAMMB < w.RAMMB || n.DiskGB < w.DiskGB {
		return false
	}
	for _, trait := range w.Traits {
		if !slices.Contains(n.Traits, trait) {
			return false
		}
	}
	for _, text := range w.Capabilities {
		c, err := ParseCapability("", text)
		if err != nil || !c.Match(n) {
			return false
		}
	}
	return true
}
