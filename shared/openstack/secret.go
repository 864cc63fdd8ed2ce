package openstack

import (
	"context"
	"net/url"
	"path"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/keymanager/v1/secrets"

	"github.com/cloudfn/cloudfn/shared/domain"
)

type secret struct {
	Ref          string            `json:"secret_ref"`
	Name         string            `json:"name"`
	Status       string            `json:"status"`
	ContentTypes map[string]string `json:"content_types"` // null without a payload
	Created      naiveTime         `json:"created"`
}

func (s *Session) barbican(ctx context.Context) (*gophercloud.ServiceClient, error) {
	return s.clientOf(ctx, "key-manager", "v1/", "")
}

// Secrets lists the project's secrets in Barbican without their payloads. name "" means all.
func (s *Session) Secrets(ctx context.Context, name string) ([]domain.StoredSecret, error) {
	barbican, err := s.barbican(ctx)
	if err != nil {
		return nil, err
	}
	// 100 is Barbican's own maximum. Without sort its pages have no order at all; by name, a name that only one secret
	// has is on exactly one page.
	query := url.Values{"limit": {"100"}, "sort": {"name,created"}}
	if name != "" {
		query.Set("name", name)
	}
	type page struct {
		Secrets []secret `json:"secrets"`
		Next    string   `json:"next"`
	}
	found, err := everyPage(ctx, barbican, barbican.ServiceURL("secrets"), query,
		func(p *page) ([]secret, string) { return p.Secrets, p.Next },
		func(one secret) string { return one.Ref })
	return convert(found, err, secret.domain)
}

func (one secret) domain() domain.StoredSecret {
	return domain.StoredSecret{
		ID: path.Base(one.Ref), Name: one.Name, Status: one.Status, ContentType: one.ContentTypes["default"],
		CreatedAt: one.Created.Time,
	}
}

// Secret reads one secret, without its payload.
func (s *Session) Secret(ctx context.Context, id string) (domain.StoredSecret, error) {
	barbican, err := s.barbican(ctx)
	if err != nil {
		return domain.StoredSecret{}, err
	}
	var found secret
	err = get(ctx, barbican, barbican.ServiceURL("secrets", url.PathEscape(id)), &found)
	return found.domain(), err
}

// StoreSecret makes a secret. A payload whose type is not text is base64. Barbican strips the payload of this call, so
// a text that begins or ends with spaces is stored by a second one.
func (s *Session) StoreSecret(ctx context.Context, name, contentType string, payload domain.Secret) (string, error) {
	barbican, err := s.barbican(ctx)
	if err != nil {
		return "", err
	}
	opts := secrets.CreateOpts{Name: name, Payload: payload.Reveal(), PayloadContentType: contentType}
	isText := domain.SecretSpec{ContentType: contentType}.IsText()
	isWhole := !isText || domain.Stripped(opts.Payload) == opts.Payload
	if !isText {
		opts.PayloadContentEncoding = "base64"
	}
	if !isWhole {
		opts = secrets.CreateOpts{Name: name}
	}
	made, err := secrets.Create(ctx, barbican, opts).Extract()
	if err != nil {
		return "", classify("barbican", err)
	}
	id := path.Base(made.SecretRef)
	if isWhole {
		return id, nil
	}
	return id, s.FillSecret(ctx, id, contentType, payload)
}

// FillSecret stores the payload of a secret that has none.
func (s *Session) FillSecret(ctx context.Context, id, contentType string, payload domain.Secret) error {
	barbican, err := s.barbican(ctx)
	if err != nil {
		return err
	}
	opts := secrets.UpdateOpts{Payload: payload.Reveal(), ContentType: contentType}
	if !(domain.SecretSpec{ContentType: contentType}).IsText() {
		opts.ContentEncoding = "base64"
	}
	return classify("barbican", secrets.Update(ctx, barbican, id, opts).ExtractErr())
}

// DeleteSecret deletes a secret with its payload.
func (s *Session) DeleteSecret(ctx context.Context, id string) error {
	barbican, err := s.barbican(ctx)
	if err != nil {
		return err
	}
	return absentIsDone(classify("barbican", secrets.Delete(ctx, barbican, id).ExtractErr()))
}
