package managed

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// reference is what a field of a spec names.
type reference struct {
	what string
	kind domain.Kind // that may be declared; "" = only the cloud has it
	pick func(ctx context.Context, cloud cachedLists, r lookup.Ref) error
}

// references are the fields of specs that name something else.
var references = map[string]reference{
	"flavor":          {"flavor", "", pickFlavor},
	"image":           {"image", domain.KindImage, pickImage},
	"networks":        {"network", "", pickNetwork},
	"network":         {"network", "", pickNetwork},
	"key_name":        {"key pair", "", pickKeyPair},
	"security_groups": {"security group", "", pickSecurityGroup},
	"volumes":         {"managed volume", domain.KindVolume, nil},
	"configmaps":      {"Configmap", domain.KindConfigmap, nil},
}

// absent lists what a declaration newly names and nothing has. What stays is not its fault, and what the cloud does not
// show now is found out by reconcile-managed.
func (s service) absent(
	ctx context.Context, cloud cachedLists, before, made domain.Managed,
) (missing []PlanMissing, err error) {
	from, to := shownFields(before), shownFields(made)
	for _, name := range slices.Sorted(maps.Keys(references)) {
		ref, field := references[name], "spec."+name
		old := texts(from[field])
		for n, value := range texts(to[field]) {
			if value == "" || slices.Contains(old, value) {
				continue
			}
			at := field
			if _, isList := to[field].([]any); isList {
				at = fmt.Sprintf("%s[%d]", field, n)
			}
			problem, err := s.problem(ctx, cloud, made.ProjectID, ref, lookup.Ref{Field: at, Value: value})
			if err != nil {
				return nil, err
			}
			if problem != "" {
				missing = append(missing, PlanMissing{Field: at, Kind: string(ref.kind), Name: value, Detail: problem})
			}
		}
	}
	return missing, nil
}

// problem says why a name stands for nothing; "" = it stands for something, or that is unknown.
func (s service) problem(
	ctx context.Context, cloud cachedLists, projectID string, ref reference, r lookup.Ref,
) (string, error) {
	if ref.kind != "" {
		_, err := s.store.Get(ctx, projectID, ref.kind, r.Value)
		if err == nil || apperr.CodeOf(err) != apperr.NotFound {
			return "", err
		}
	}
	if ref.pick == nil {
		return s.absentResource(ctx, projectID, ref, r)
	}
	err := ref.pick(ctx, cloud, r)
	switch problem := apperr.As(err); {
	case err == nil:
		return "", nil
	case len(problem.Fields) == 1 && problem.Fields[0].Field == r.Field:
		detail := problem.Fields[0].Detail
		if problem.Code == apperr.Conflict { // the name is not unique
			detail += ": " + strings.Join(problem.Fields[0].Allowed, ", ")
		}
		return detail, nil
	}
	slog.WarnContext(ctx, "a reference is not checked", "project_id", projectID, "field", r.Field, "error", err)
	return "", nil
}

// absentResource is the error for a resource that the project does not have, with the nearest name of the first of its
// kind.
func (s service) absentResource(
	ctx context.Context, projectID string, ref reference, r lookup.Ref,
) (string, error) {
	page, err := s.store.List(ctx, projectID, domain.ManagedQuery{Kind: ref.kind, Limit: pageOfUsers})
	names := make([]string, len(page))
	for n, m := range page {
		names[n] = m.Name
	}
	return apperr.As(lookup.Absent(r.Field, ref.what, r.Value, names)).Fields[0].Detail, err
}

// cachedLists reads the lists of Neutron once: a server may have 20 networks and 50 security groups.
type cachedLists struct {
	*openstack.Session

	networks func() ([]domain.Network, error)
	groups   func() ([]domain.SecurityGroup, error)
}

func newCachedLists(ctx context.Context, cloud *openstack.Session) cachedLists {
	return cachedLists{
		Session:  cloud,
		networks: sync.OnceValues(func() ([]domain.Network, error) { return cloud.NetworkNames(ctx) }),
		groups:   sync.OnceValues(func() ([]domain.SecurityGroup, error) { return cloud.SecurityGroups(ctx) }),
	}
}

// NetworkNames replaces the session's.
func (c cachedLists) NetworkNames(context.Context) ([]domain.Network, error) { return c.networks() }

// SecurityGroups replaces the session's.
func (c cachedLists) SecurityGroups(context.Context) ([]domain.SecurityGroup, error) {
	return c.groups()
}

// texts are a field's value, or its entries.
func texts(value any) (all []string) {
	switch value := value.(type) {
	case string:
		return []string{value}
	case []any:
		for _, entry := range value {
			text, _ := entry.(string)
			all = append(all, text)
		}
	}
	return all
}

func pickFlavor(ctx context.Context, cloud cachedLists, r lookup.Ref) error {
	all, err := cloud.Flavors(ctx)
	if err == nil {
		_, err = lookup.PickFlavor(all, r)
	}
	return err
}

func pickImage(ctx context.Context, cloud cachedLists, r lookup.Ref) error {
	found, err := lookup.FindImages(ctx, cloud, r.Value)
	if err == nil {
		_, err = lookup.PickImage(found, r)
	}
	return err
}

func pickNetwork(ctx context.Context, cloud cachedLists, r lookup.Ref) error {
	all, err := cloud.NetworkNames(ctx)
	if err == nil {
		_, err = lookup.PickNetworks(all, []lookup.Ref{r})
	}
	return err
}

func pickKeyPair(ctx context.Context, cloud cachedLists, r lookup.Ref) error {
	pairs, err := cloud.KeyPairs(ctx)
	if err == nil {
		err = lookup.CheckKeyPair(pairs, r)
	}
	return err
}

// checkKeyPair rejects a spec whose key pair the session's user does not have: Nova looks it up among those of the user
// who makes a server.
func checkKeyPair(
	ctx context.Context, list func(context.Context) ([]domain.KeyPair, error), spec json.RawMessage,
) error {
	var s domain.MachineSpec
	if _ = json.Unmarshal(spec, &s); s.KeyName == "" { // it was checked, and other kinds have none
		return nil
	}
	pairs, err := list(ctx)
	if err != nil {
		return err
	}
	const field = "spec.key_name"
	if err = lookup.CheckKeyPair(pairs, lookup.Ref{Field: field, Value: s.KeyName}); err == nil {
		return nil
	}
	return apperr.InvalidField(field, fmt.Sprintf("you have no key pair %q: another user has declared the resource, "+
		"and with your change servers are made in your name; import the key pair, or name one of yours", s.KeyName),
		apperr.As(err).Fields[0].Allowed...)
}

func pickSecurityGroup(ctx context.Context, cloud cachedLists, r lookup.Ref) error {
	all, err := cloud.SecurityGroups(ctx)
	if err == nil {
		_, err = lookup.PickSecurityGroup(all, r)
	}
	return err
}
