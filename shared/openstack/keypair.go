package openstack

import (
	"context"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ImportKeyPair gives the caller the public half of an SSH key under a name that is not in use yet, else it is a Conflict.
func (s *Session) ImportKeyPair(ctx context.Context, name, publicKey string) (domain.KeyPair, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return domain.KeyPair{}, err
	}
	made, err := keypairs.Create(ctx, nova, keypairs.CreateOpts{Name: name, PublicKey: publicKey}).Extract()
	if err != nil {
		return domain.KeyPair{}, classify("nova", err)
	}
	return domain.KeyPair{Name: made.Name, Fingerprint: made.Fingerprint, Type: "ssh"}, nil
}

// DeleteKeyPair takes a key pair from the caller. One that is gone already, or is another user's, is no error.
func (s *Session) DeleteKeyPair(ctx context.Context, name string) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	err = classify("nova", keypairs.Delete(ctx, nova, name, keypairs.DeleteOpts{}).ExtractErr())
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}
