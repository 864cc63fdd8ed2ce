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
)

// newKey makes an SSH key: the public half as it stands in authorized_keys, and the private one as OpenSSH keeps it.
func newKey(comment string) (public string, private domain.Secret, err error) {
	public25519, private25519, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", err
	}
	half, err := ssh.NewPublicKey(public25519)
	if err != nil {
		return "", "", err
	}
	block, err := ssh.MarshalPrivateKey(private25519, comment)
	if err != nil {
		return "", "", err
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(half))) + " " + comment, domain.Secret(pem.EncodeToMemory(block)), nil
}

// giveKey makes the order's key pair, unless a server has one already: then its private half was given away, or is
// lost. A pair that a replica left behind before it died goes: nobody has its private half.
func (s service) giveKey(ctx context.Context, cloud session, order domain.Order, claim domain.Claim) (domain.Order, domain.Secret, error) {
	name := order.Spec.GeneratedKey
	if name == "" || order.Undecided() < len(order.Instances) {
		return order, "", nil
	}
	public, private, err := newKey(name)
	if err != nil {
		return order, "", err
	}
	if !claim.Fresh {
		if err := cloud.DeleteKeyPair(ctx, name); err != nil {
			return order, "", err
		}
	}
	made, err := cloud.ImportKeyPair(ctx, name, public)
	if err != nil {
		return order, "", err
	}
	order.Instances = slices.Clone(order.Instances)
	for n := range order.Instances {
		order.Instances[n].KeyFingerprint = made.Fingerprint
	}
	return order, private, s.orders.Keyed(ctx, order, claim, made.Fingerprint)
}
