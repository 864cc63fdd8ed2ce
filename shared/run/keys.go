package run

import (
	"fmt"
	"io"

	"github.com/cloudfn/cloudfn/shared/seal"
)

// printKeys makes a pair of keys for secrets, as two lines of an environment.
func printKeys(out io.Writer) error {
	public, private, err := seal.Generate()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "SEAL_PUBLIC_KEY=%s\nSEAL_PRIVATE_KEY=%s\n", public, private.Reveal())
	return err
}
