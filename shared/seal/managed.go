package seal

import "github.com/cloudfn/cloudfn/shared/domain"

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
