package openstack

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// NewKey makes an SSH key: the public half as a line of authorized_keys, and the private one in OpenSSH's format.
func NewKey(comment string) (public string, private domain.Secret, err error) {
	publicKey, privateKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", err
	}
	half, err := ssh.NewPublicKey(publicKey)
	if err != nil {
		return "", "", err
	}
	block, err := ssh.MarshalPrivateKey(privateKey, comment)
	if err != nil {
		return "", "", err
	}
	public = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(half))) + " " + comment
	return public, domain.Secret(pem.EncodeToMemory(block)), nil
}
