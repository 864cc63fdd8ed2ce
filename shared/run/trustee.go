package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/openstack"
)

// trusteeConfig is what run-connections logs in with.
type trusteeConfig struct {
	OpenStack openstack.Config
	Account   openstack.Credentials
}

// trusteeTimeout bounds the login.
const trusteeTimeout = 30 * time.Second

// printTrustee says to which user trusts have to be made, as a line of an environment: the one that run-connections
// logs in as. Keystone shows a user's id to the user itself, and the functions that make trusts do not hold the
// account.
func printTrustee(ctx context.Context, env envconfig.Lookuper, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, trusteeTimeout)
	defer cancel()
	cfg, err := load[trusteeConfig](ctx, env)
	if err != nil {
		return err
	}
	cloud, err := openstack.New(cfg.OpenStack, openstack.Options{})
	if err != nil {
		return err
	}
	defer cloud.Close()
	account, err := cloud.Account(cfg.OpenStack, cfg.Account)
	if err != nil {
		return err
	}
	if account.IsCredential() {
		return errors.New(account.Variable() + " is set: Keystone lets no application credential use a trust, set " +
			"OS_USERNAME and OS_PASSWORD")
	}
	session, err := account.Login(ctx)
	if err != nil {
		// one line
		return errors.New("the service account cannot log in: " + strings.ReplaceAll(err.Error(), "\n", ": "))
	}
	_, err = fmt.Fprintf(out, "TRUSTEE_USER_ID=%s\n", session.UserID())
	return err
}
