package managed

import (
	"encoding/base64"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSecret declares a secret, changes it and deletes it, in Barbican.
func TestSecret(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, SecretDriver{}, domain.SecretSpec{})
	s.in.Secrets.Payload = testkit.Canary("a payload of a secret")
	first := s.lost(t)
	made, updates := s.settle(t)
	if made.ID != first.ID || updates != 0 || made.Raw.(domain.StoredSecret).ContentType != "text/plain" {
		t.Errorf("%d updates of %+v", updates, made)
	}
	s.declare(t, domain.SecretSpec{}) // such as its labels
	s.differ(t, made)
	s.in.Resource.Digest = []byte("another payload")
	s.differ(t, made, "payload replace")
	s.declare(t, domain.SecretSpec{ContentType: "application/octet-stream"})
	s.differ(t, made, "content_type replace", "payload replace")
	if _, err := s.driver.Find(t.Context(), s.Session, made.ID); err != nil {
		t.Errorf("it is gone: %v", err)
	}
	s.remove(t)
	if _, err := s.driver.Find(t.Context(), s.Session, made.ID); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("it is not gone: %v", err)
	}
	if err := s.driver.Delete(t.Context(), s.Session, made); err != nil {
		t.Errorf("an absent one: %v", err)
	}
	s.in.Secrets.Payload = base64.StdEncoding.EncodeToString([]byte{0, 255})
	if binary, _ := s.settleNew(t); binary.Raw.(domain.StoredSecret).ContentType != "application/octet-stream" {
		t.Errorf("it is %+v", binary)
	}
}

// TestSecretIsStoredAsDeclared: Barbican strips what a create call has, and has the rest by another call. A process may
// end between the two.
func TestSecretIsStoredAsDeclared(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ contentType, payload, want string }{
		{"", " a text\n", " a text\n"},
		{"text/plain;charset=utf-8", "schlüssel", "schlüssel"},
		{"application/octet-stream", "AP8=\n", "\x00\xff"},
	} {
		s := newSandbox(t, SecretDriver{}, domain.SecretSpec{ContentType: row.contentType})
		s.in.Secrets.Payload = row.payload
		if row.contentType == "" {
			s.project.MakeSecret(t, secretName(s.in.Name, s.in.Member.ID))
			if o, _ := s.list(t); o.State != ObjectIncomplete {
				t.Errorf("without a payload it is %+v", o)
			}
		}
		made, _ := s.settle(t)
		got := payload(t, s, made.ID)
		s.remove(t)
		whole, err := s.driver.Create(t.Context(), s.Session, s.in)
		if again := payload(t, s, whole); err != nil || got != row.want || again != row.want {
			t.Errorf("%q is stored as %q and %q, %v", row.payload, got, again, err)
		}
	}
}

func payload(t *testing.T, s *sandbox, id string) string {
	t.Helper()
	stored, err := s.Cloud.Secret(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return s.project.Payload(t, id, stored.ContentType)
}

// TestLongManySecrets: all are found, in several pages.
func TestLongManySecrets(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, SecretDriver{}, domain.SecretSpec{})
	const others = 105 // a page has 100
	// Barbican answers 500 when a project's first secrets are stored at the same time.
	if _, err := s.Cloud.StoreSecret(t.Context(), "other-0", "text/plain", "x"); err != nil {
		t.Fatal(err)
	}
	var calls errgroup.Group
	calls.SetLimit(8)
	for n := 1; n < others; n++ {
		calls.Go(func() error {
			_, err := s.Cloud.StoreSecret(t.Context(), fmt.Sprintf("other-%d", n), "text/plain", "x")
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		t.Fatal(err)
	}
	s.in.Secrets.Payload = "x"
	if o, _ := s.settle(t); o.ID == "" {
		t.Error("it is not found")
	}
	all, err := s.Cloud.Secrets(t.Context(), "")
	if err != nil || len(all) != others+1 {
		t.Errorf("%d secrets, %v", len(all), err)
	}
	for _, one := range all {
		calls.Go(func() error { return s.Cloud.DeleteSecret(t.Context(), one.ID) })
	}
	if err := calls.Wait(); err != nil {
		t.Error(err)
	}
}

// TestDefaultContentType: the content type that is the default is no other one than none.
func TestDefaultContentType(t *testing.T) {
	t.Parallel()
	for declared, want := range map[string]int{
		`{"content_type": "text/plain"}`: 0, `{"content_type": "application/json"}`: 1,
	} {
		in := Wanted{Spec: []byte(declared), Made: domain.Revision{Number: 1, Spec: []byte(`{}`)}}
		if all := (SecretDriver{}).Differences(in, Object{}); len(all) != want {
			t.Errorf("%s: %+v", declared, all)
		}
	}
}
