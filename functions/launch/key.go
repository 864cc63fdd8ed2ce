package launch

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// newKey makes an SSH key: the public half as a line of authorized_keys, and the private one in OpenSSH's format.
func newKey(comment string) (public string, private domain.Secret, err error) {
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

// keyPair makes the key pair of an order.
type keyPair struct {
	cloud   cloud
	userID  string // whose key pairs the cloud has
	orders  postgres.Orders
	private domain.Secret // set by prepare when it has made a pair
}

// prepare makes the order's key pair before its first server. A pair that a replica left behind before it died is
// replaced: nobody has its private half. A pair of that name that another user has is not the order's.
func (k *keyPair) prepare(ctx context.Context, order domain.Order, claim domain.Claim) (domain.Order, error) {
	name := order.Spec.GeneratedKey
	if name == "" || order.Undecided() < len(order.Instances) {
		return order, nil
	}
	public, private, err := newKey(name)
	if err != nil {
		return order, err
	}
	if !claim.Fresh && order.UserID == k.userID {
		if err := k.cloud.DeleteKeyPair(ctx, name); err != nil {
			return order, err
		}
	}
	made, err := k.cloud.ImportKeyPair(ctx, name, public)
	if err != nil {
		return order, err
	}
	order.Instances = slices.Clone(order.Instances)
	for n := range order.Instances {
		order.Instances[n].KeyFingerprint = made.Fingerprint
	}
	if err := k.orders.RecordFingerprint(ctx, order, claim, made.Fingerprint); err != nil {
		return order, err // after ErrFenced another replica makes a pair of its own
	}
	k.private = private
	return order, nil
}
