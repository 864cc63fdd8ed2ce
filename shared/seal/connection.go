package seal

import "github.com/cloudfn/cloudfn/shared/domain"

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
