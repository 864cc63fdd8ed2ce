package managed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// SecretCloud is the part of OpenStack that secrets need.
type SecretCloud interface {
	Secrets(ctx context.Context, name string) ([]domain.StoredSecret, error)
	Secret(ctx context.Context, id string) (domain.StoredSecret, error)
	StoreSecret(ctx context.Context, name, contentType string, payload domain.Secret) (id string, err error)
	FillSecret(ctx context.Context, id, contentType string, payload domain.Secret) error
	DeleteSecret(ctx context.Context, id string) error
}

// SecretDriver makes secrets of Barbican. A secret never changes there, and its metadata is not in a list, so the mark
// is in its name: <name>.cloudfn-<member>.
type SecretDriver struct{}

const secretMark = ".cloudfn-"

func secretName(name string, member uuid.UUID) string { return name + secretMark + member.String() }

// Kinds implements Driver.
func (SecretDriver) Kinds() []domain.Kind { return []domain.Kind{domain.KindSecret} }

// Needs implements Driver.
func (SecretDriver) Needs(json.RawMessage) []Ref { return nil }

// List implements Driver.
func (SecretDriver) List(
	ctx context.Context, s Session, members []domain.Member,
) (map[uuid.UUID]Object, error) {
	all, err := s.Cloud.Secrets(ctx, "")
	if err != nil {
		return nil, err
	}
	found := map[uuid.UUID][]Object{}
	for _, one := range all {
		n := strings.LastIndex(one.Name, secretMark)
		if n < 0 {
			continue
		}
		if member, err := uuid.Parse(one.Name[n+len(secretMark):]); err == nil {
			found[member] = append(found[member], secretObject(one))
		}
	}
	return byMark(found, members), nil
}

func secretObject(one domain.StoredSecret) Object {
	o := Object{ID: one.ID, Name: one.Name, State: ObjectReady, CreatedAt: one.CreatedAt, Raw: one}
	switch {
	case one.Status != "ACTIVE":
		o.State, o.Reason = ObjectError, "Barbican's status of the secret is "+one.Status
	case one.ContentType == "": // it has no payload yet
		o.State = ObjectIncomplete
	}
	return o
}

// Find implements Driver: Barbican's pages are numbered, so a list leaves out a secret when another one is deleted
// meanwhile.
func (SecretDriver) Find(ctx context.Context, s Session, id string) (Object, error) {
	one, err := s.Cloud.Secret(ctx, id)
	return secretObject(one), err
}

// Create implements Driver.
func (SecretDriver) Create(ctx context.Context, s Session, in Desired) (string, error) {
	name := secretName(in.Name, in.Member.ID)
	made, err := s.Cloud.Secrets(ctx, name)
	if err != nil {
		return "", unsent(err)
	}
	contentType := contentTypeOf(in.Spec)
	payload := domain.Secret(in.Secrets.Payload)
	for _, one := range made {
		if one.Name == name {
			in.found()
		}
		switch {
		case one.Name != name:
		case one.ContentType == "":
			return one.ID, s.Cloud.FillSecret(ctx, one.ID, contentType, payload)
		default:
			return one.ID, nil
		}
	}
	return sent(s.Cloud.StoreSecret(ctx, name, contentType, payload))
}

// contentTypeOf is the content type of the payload of a spec.
func contentTypeOf(spec json.RawMessage) string {
	return cmp.Or(read[domain.SecretSpec](spec).ContentType, "text/plain")
}

// Differences implements Driver. Only revisions can differ: others cannot change a secret either.
func (SecretDriver) Differences(in Desired, _ Object) []Difference {
	if in.Made.Number == 0 { // it is not known what the secret was made of
		return nil
	}
	out := compare("content_type", contentTypeOf(in.Spec), contentTypeOf(in.Made.Spec), Replace)
	if !bytes.Equal(in.Resource.Digest, in.Made.Digest) {
		out = append(out, Difference{Field: "payload", Way: Replace})
	}
	return out
}

// Update implements Driver. There is nothing to change in place.
func (SecretDriver) Update(context.Context, Session, Desired, Object, []Difference) error { return nil }

// Delete implements Driver.
func (SecretDriver) Delete(ctx context.Context, s Session, o Object) error {
	return s.Cloud.DeleteSecret(ctx, o.ID)
}
