package launch

import (
	"fmt"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// check refuses what no cloud would take of one server, before anything is stored. networks is the field that lists
// them.
func (i item) check(in request, networks string) error {
	if err := i.checkSize(); err != nil {
		return err
	}
	if err := domain.CheckText(i.image.Field, i.image.Value, domain.MaxNameLength); err != nil {
		return err
	}
	if len(i.networks) > domain.MaxNetworks {
		return apperr.InvalidField(networks, fmt.Sprintf("must have at most %d entries", domain.MaxNetworks))
	}
	for _, n := range i.networks {
		if err := domain.CheckText(n.Field, n.Value, domain.MaxNameLength); err != nil {
			return err
		}
	}
	if in.GenerateKey && i.spec.KeyName != "" {
		return apperr.InvalidField(i.fields["key_name"], "does not go with generate_key")
	}
	if len(i.userData) > domain.MaxUserData {
		return apperr.InvalidField(i.fields["user_data"], fmt.Sprintf("must have at most %d bytes", domain.MaxUserData))
	}
	return i.at(i.spec.Check())
}

// checkSize wants a flavor or the least that the server must have, and not both.
func (i item) checkSize() error {
	if i.min == nil {
		return domain.CheckText(i.flavor.Field, i.flavor.Value, domain.MaxNameLength)
	}
	if i.flavor.Value != "" {
		return apperr.InvalidField(i.fields["min"], "does not go with flavor")
	}
	for _, part := range []struct {
		name string
		n    int
	}{{"vcpus", i.min.VCPUs}, {"ram_mb", i.min.RAMMB}, {"disk_gb", i.min.DiskGB}} {
		if part.n < 0 {
			return apperr.InvalidField(i.fields["min"]+"."+part.name, "must not be negative")
		}
	}
	return nil
}

// at names the field of an error as the request has it.
func (i item) at(err error) error {
	if err == nil {
		return nil
	}
	e := apperr.As(err)
	if len(e.Fields) != 1 {
		return err
	}
	f := e.Fields[0]
	name, key, inside := strings.Cut(f.Field, ".")
	if field := i.fields[name]; field != "" {
		name = field
	}
	if inside {
		name += "." + key
	}
	return apperr.InvalidField(name, f.Detail, f.Allowed...)
}
