package seal

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

func pair(t *testing.T) (PublicKey, domain.Secret) {
	t.Helper()
	public, private, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	key, err := Config{PublicKey: public}.Key()
	if err != nil {
		t.Fatal(err)
	}
	return key, private
}

func parseKeys(t *testing.T, private ...domain.Secret) PrivateKeys {
	t.Helper()
	texts := make([]string, len(private))
	for i, p := range private {
		texts[i] = p.Reveal()
	}
	keys, err := OpenConfig{PrivateKey: domain.Secret(strings.Join(texts, ", "))}.Keys()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

const (
	purpose = "callback/p1/1"
	secret  = domain.Secret("whsec_c2VjcmV0")
)

func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	key, private := pair(t)
	keys := parseKeys(t, private)
	one, err := key.Seal(purpose, secret)
	if err != nil {
		t.Fatal(err)
	}
	two, _ := key.Seal(purpose, secret)
	if bytes.Equal(one, two) || bytes.Contains(one, []byte("c2Vj")) {
		t.Error("a sealed secret shows what it holds, or that it is the same as another")
	}
	if got, err := keys.Open(purpose, one); err != nil || got.Reveal() != secret.Reveal() {
		t.Errorf("opened %v %v", got, err)
	}
	if _, err := keys.Open("callback/p2/1", one); !errors.Is(err, ErrDamaged) {
		t.Errorf("another purpose: %v", err)
	}
	for i := range one {
		changed := bytes.Clone(one)
		changed[i] ^= 1
		if _, err := keys.Open(purpose, changed); err == nil {
			t.Errorf("opened with byte %d changed", i)
		}
		if _, err := keys.Open(purpose, one[:i]); err == nil {
			t.Errorf("opened with %d bytes of %d", i, len(one))
		}
	}
	if _, err := (PublicKey{}).Seal(purpose, secret); err == nil {
		t.Error("sealed without a key")
	}
}

// TestRotation: what was sealed to the old key opens while the old key is kept, and says so when it is not.
func TestRotation(t *testing.T) {
	t.Parallel()
	oldKey, oldPrivate := pair(t)
	newKey, newPrivate := pair(t)
	before, _ := oldKey.Seal(purpose, secret)
	after, _ := newKey.Seal(purpose, secret)
	both := parseKeys(t, newPrivate, oldPrivate)
	for _, sealed := range [][]byte{before, after} {
		if got, err := both.Open(purpose, sealed); err != nil || got != secret {
			t.Errorf("with both keys: %v", err)
		}
	}
	if _, err := parseKeys(t, newPrivate).Open(purpose, before); !errors.Is(err, ErrOtherKey) {
		t.Errorf("without the old key: %v", err)
	}
}

// TestMissingKeyNamesItsVariable: the operator learns which variable lacks the key.
func TestMissingKeyNamesItsVariable(t *testing.T) {
	t.Parallel()
	key, _ := pair(t)
	sealed, err := key.Seal("p", "s3cret")
	if err != nil {
		t.Fatal(err)
	}
	_, text := pair(t)
	other := text
	for variable, keys := range map[string]func() (PrivateKeys, error){
		"SEAL_PRIVATE_KEY":       OpenConfig{PrivateKey: other}.Keys,
		"CONNECTION_PRIVATE_KEY": ConnectionOpenConfig{ConnectionPrivateKey: other}.Keys,
		"MANAGED_PRIVATE_KEY":    ManagedOpenConfig{ManagedPrivateKey: other}.Keys,
	} {
		k, err := keys()
		if err != nil {
			t.Fatal(err)
		}
		_, err = k.Open("p", sealed)
		if !errors.Is(err, ErrOtherKey) || !strings.Contains(err.Error(), " "+variable) ||
			strings.Count(err.Error(), "_PRIVATE_KEY") != 1 {
			t.Errorf("%s: got %v", variable, err)
		}
	}
}

func TestKeysThatCannotWork(t *testing.T) {
	t.Parallel()
	public, private, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"", public[:20], private.Reveal(), "x", publicPrefix, publicPrefix + "!", public + "AAAA",
	} {
		if err := (Config{PublicKey: text}).Validate(); err == nil ||
			!strings.Contains(err.Error(), "SEAL_PUBLIC_KEY") || !strings.Contains(err.Error(), "cloudfnd keys") {
			t.Errorf("%q as a public key: %v", text, err)
		}
	}
	for _, text := range []string{
		"", public, private.Reveal() + ",", private.Reveal()[:30], privatePrefix, private.Reveal() + "," + public,
	} {
		err := OpenConfig{PrivateKey: domain.Secret(text)}.Validate()
		if err == nil || !strings.Contains(err.Error(), "SEAL_PRIVATE_KEY") ||
			!strings.Contains(err.Error(), "cloudfnd keys") {
			t.Errorf("as a private key: %v", err)
			continue
		}
		if strings.Contains(fmt.Sprintf("%v %+v", err, OpenConfig{PrivateKey: domain.Secret(text)}),
			private.Reveal()[:12]) {
			t.Errorf("the refusal shows the key: %v", err)
		}
	}
}
