// Package seal keeps secrets from those who store them: who takes a secret seals it to the public key of the one
// function that needs it, and cannot read it back.
//
// A sealed secret is the id of the key (8 bytes) and what HPKE makes of it (RFC 9180: X25519, HKDF-SHA256,
// ChaCha20-Poly1305). It opens for its purpose only, such as "callback/<project>/<id>": in another row it is of no use.
package seal

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config is for functions that take secrets.
type Config struct {
	// Public key that encrypts the secrets of callbacks; `cloudfnd keys` prints it with its private key.
	PublicKey string `env:"SEAL_PUBLIC_KEY"`
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	_, err := c.Key()
	return err
}

// Key returns the public key.
func (c Config) Key() (PublicKey, error) {
	return publicKey("SEAL_PUBLIC_KEY", c.PublicKey)
}

func publicKey(variable, text string) (PublicKey, error) {
	key, err := ParsePublicKey(text)
	return key, namesKey(variable, err)
}

func privateKeys(variable string, text domain.Secret) (PrivateKeys, error) {
	keys, err := ParsePrivateKeys(text)
	for n := range keys {
		keys[n].variable = variable
	}
	return keys, namesKey(variable, err)
}

func namesKey(variable string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s %w: `cloudfnd keys` makes one", variable, err)
	}
	return err
}

// OpenConfig is for the function that opens secrets.
type OpenConfig struct {
	// Private keys that decrypt the secrets of callbacks, separated by commas: the new key first, then older ones
	// until nothing uses them.
	PrivateKey domain.Secret `env:"SEAL_PRIVATE_KEY"`
}

// Validate refuses an OpenConfig that cannot work. What it says quotes no key.
func (c OpenConfig) Validate() error {
	_, err := c.Keys()
	return err
}

// Keys returns the private keys.
func (c OpenConfig) Keys() (PrivateKeys, error) {
	return privateKeys("SEAL_PRIVATE_KEY", c.PrivateKey)
}

// A key's text says which of the two it is, so that no one hands out the private one for the other.
const (
	publicPrefix  = "sealpub_"
	privatePrefix = "sealkey_"
)

const idSize = 8

func suite() (hpke.KEM, hpke.KDF, hpke.AEAD) {
	return hpke.DHKEM(ecdh.X25519()), hpke.HKDFSHA256(), hpke.ChaCha20Poly1305()
}

// PublicKey seals secrets.
type PublicKey struct {
	key hpke.PublicKey
	id  []byte
}

// PrivateKeys open what was sealed to the public key of any of them.
type PrivateKeys []privateKey

type privateKey struct {
	key      hpke.PrivateKey
	id       []byte
	variable string // that holds it, for errors
}

func idOf(key hpke.PublicKey) []byte {
	sum := sha256.Sum256(key.Bytes())
	return sum[:idSize]
}

// ParsePublicKey reads a key as `cloudfnd keys` prints it.
func ParsePublicKey(text string) (PublicKey, error) {
	data, err := decode(text, publicPrefix)
	if err != nil {
		return PublicKey{}, err
	}
	kem, _, _ := suite()
	key, err := kem.NewPublicKey(data)
	if err != nil {
		return PublicKey{}, errMalformed
	}
	return PublicKey{key: key, id: idOf(key)}, nil
}

// ParsePrivateKeys reads one or more keys, separated by commas. Its errors quote none.
func ParsePrivateKeys(text domain.Secret) (PrivateKeys, error) {
	var keys PrivateKeys
	kem, _, _ := suite()
	for one := range strings.SplitSeq(text.Reveal(), ",") {
		data, err := decode(strings.TrimSpace(one), privatePrefix)
		if err != nil {
			return nil, err
		}
		key, err := kem.NewPrivateKey(data)
		if err != nil {
			return nil, errMalformed
		}
		keys = append(keys, privateKey{key: key, id: idOf(key.PublicKey())})
	}
	return keys, nil
}

var errMalformed = errors.New("is malformed")

func decode(text, prefix string) ([]byte, error) {
	if text == "" {
		return nil, errors.New("is empty")
	}
	encoded, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return nil, fmt.Errorf("does not begin with %s", prefix)
	}
	data, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errMalformed
	}
	return data, nil
}

// Generate makes a new pair of keys, as texts.
func Generate() (public string, private domain.Secret, err error) {
	kem, _, _ := suite()
	key, err := kem.GenerateKey()
	if err != nil {
		return "", "", err
	}
	data, err := key.Bytes()
	if err != nil {
		return "", "", err
	}
	public = publicPrefix + base64.RawURLEncoding.EncodeToString(key.PublicKey().Bytes())
	return public, domain.Secret(privatePrefix + base64.RawURLEncoding.EncodeToString(data)), nil
}

// ID is a short name of the key, which both halves share. It reveals nothing about the private one.
func (k PublicKey) ID() string { return hex.EncodeToString(k.id) }

// IDs are the names of the keys.
func (k PrivateKeys) IDs() []string {
	ids := make([]string, len(k))
	for i, one := range k {
		ids[i] = hex.EncodeToString(one.id)
	}
	return ids
}

// Seal makes the secret readable for the holder of the private key only, and for this purpose only.
func (k PublicKey) Seal(purpose string, secret domain.Secret) ([]byte, error) {
	if k.key == nil {
		return nil, errors.New("seal: no key")
	}
	_, kdf, aead := suite()
	sealed, err := hpke.Seal(k.key, kdf, aead, info(purpose), []byte(secret.Reveal()))
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return append(bytes.Clone(k.id), sealed...), nil
}

// Why a sealed secret cannot be opened.
var (
	ErrOtherKey = errors.New("it is encrypted with a key that this function does not have")
	ErrDamaged  = errors.New("it is damaged, or was sealed for another purpose")
)

// Open reads a secret that was sealed for the same purpose: ErrOtherKey or ErrDamaged when that cannot be.
func (k PrivateKeys) Open(purpose string, sealed []byte) (domain.Secret, error) {
	if len(sealed) < idSize {
		return "", fmt.Errorf("seal: %w", ErrDamaged)
	}
	id, sealed := sealed[:idSize], sealed[idSize:]
	_, kdf, aead := suite()
	for _, one := range k {
		if !bytes.Equal(one.id, id) {
			continue
		}
		secret, err := hpke.Open(one.key, kdf, aead, info(purpose), sealed)
		if err != nil {
			return "", fmt.Errorf("seal: %w", ErrDamaged)
		}
		return domain.Secret(secret), nil
	}
	err := fmt.Errorf("seal: %w (%x)", ErrOtherKey, id)
	if len(k) > 0 && k[0].variable != "" {
		err = fmt.Errorf("%w: add the key to %s", err, k[0].variable)
	}
	return "", err
}

// info is what both sides must agree on (RFC 9180, 5.1).
func info(purpose string) []byte { return []byte("cloudfn seal v1 " + purpose) }

// ConnectionConfig is for functions that take what only run-connections may read: secrets of connections, and what is
// ordered through them. It is another key than SEAL_PUBLIC_KEY, because deliver-events need not read these, nor
// run-connections callbacks'.
type ConnectionConfig struct {
	// Public key that encrypts delegated credentials and the orders that use them; `cloudfnd keys` prints it, too.
	ConnectionPublicKey string `env:"CONNECTION_PUBLIC_KEY"`
}

// Validate refuses a ConnectionConfig that cannot work.
func (c ConnectionConfig) Validate() error {
	_, err := c.Key()
	return err
}

// Key returns the public key.
func (c ConnectionConfig) Key() (PublicKey, error) {
	return publicKey("CONNECTION_PUBLIC_KEY", c.ConnectionPublicKey)
}

// ConnectionOpenConfig is for run-connections.
type ConnectionOpenConfig struct {
	// Private keys that decrypt delegated credentials, in the form of `SEAL_PRIVATE_KEY`.
	ConnectionPrivateKey domain.Secret `env:"CONNECTION_PRIVATE_KEY"`
}

// Validate refuses a ConnectionOpenConfig that cannot work. What it says quotes no key.
func (c ConnectionOpenConfig) Validate() error {
	_, err := c.Keys()
	return err
}

// Keys returns the private keys.
func (c ConnectionOpenConfig) Keys() (PrivateKeys, error) {
	return privateKeys("CONNECTION_PRIVATE_KEY", c.ConnectionPrivateKey)
}

// ManagedConfig is for the function that takes the secrets of managed resources: user_data of servers, payloads.
type ManagedConfig struct {
	// Public key that encrypts the secrets of managed resources; `cloudfnd keys` prints it, too.
	ManagedPublicKey string `env:"MANAGED_PUBLIC_KEY"`
}

// Validate refuses a ManagedConfig that cannot work.
func (c ManagedConfig) Validate() error {
	_, err := c.Key()
	return err
}

// Key returns the public key.
func (c ManagedConfig) Key() (PublicKey, error) {
	return publicKey("MANAGED_PUBLIC_KEY", c.ManagedPublicKey)
}

// ManagedOpenConfig is for reconcile-managed.
type ManagedOpenConfig struct {
	// Private keys that decrypt the secrets of managed resources, in the form of `SEAL_PRIVATE_KEY`.
	ManagedPrivateKey domain.Secret `env:"MANAGED_PRIVATE_KEY"`
}

// Validate refuses a ManagedOpenConfig that cannot work. What it says quotes no key.
func (c ManagedOpenConfig) Validate() error {
	_, err := c.Keys()
	return err
}

// Keys returns the private keys.
func (c ManagedOpenConfig) Keys() (PrivateKeys, error) {
	return privateKeys("MANAGED_PRIVATE_KEY", c.ManagedPrivateKey)
}
