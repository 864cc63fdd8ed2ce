package run

import (
	"fmt"
	"io"

	"github.com/cloudfn/cloudfn/shared/seal"
)

// printKeys makes the pairs of keys for secrets, as lines of an environment: one pair for callbacks, one for
// connections, one for managed resources.
func printKeys(out io.Writer) error {
	for _, prefix := range []string{"SEAL", "CONNECTION", "MANAGED"} {
		public, private, err := seal.Generate()
		if err != nil {
			return err
		}
		if _, err = fmt.Fprintf(out, "%s_PUBLIC_KEY=%s\n%s_PRIVATE_KEY=%s\n", prefix, public, prefix,
			private.Reveal()); err != nil {
			return err
		}
	}
	return nil
}
