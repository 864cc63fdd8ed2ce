package managed

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
		in := Desired{Spec: []byte(declared), Made: domain.Revision{Number: 1, Spec: []byte(`{}`)}}
		if all := (SecretDriver{}).Differences(in, Object{}); len(all) != want {
			t.Errorf("%s: %+v", declared, all)
		}
	}
}
