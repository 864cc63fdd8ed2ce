package login

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/files"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// cache stores tokens in files that only their user can read, one for each login. The files and their names have no
// password.
type cache struct{ dir string }

// stored is what such a file holds.
type stored struct {
	Token     domain.Secret
	ExpiresAt time.Time
}

// isValid says that there is a token, and that it does not expire soon.
func (s stored) isValid() bool { return s.Token != "" && time.Until(s.ExpiresAt) >= margin }

// file is the JSON of stored: domain.Secret would not reveal the token.
type file struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// margin is how long before its end a token counts as expired, so that it is valid during the whole call.
const margin = 2 * time.Minute

// cacheDir is CLOUDFN_CACHE_DIR, or else the system's place for such files.
func cacheDir(env func(string) (string, bool)) (string, error) {
	if dir, ok := env("CLOUDFN_CACHE_DIR"); ok && dir != "" {
		return dir, nil
	}
	if dir, ok := env("XDG_CACHE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "cloudfn"), nil
	}
	home, ok := env("HOME")
	if !ok || home == "" {
		return "", errors.New("HOME is not set: set CLOUDFN_CACHE_DIR to a folder for tokens")
	}
	return filepath.Join(home, ".cache", "cloudfn"), nil
}

func (c cache) path(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(c.dir, "token-"+hex.EncodeToString(sum[:12])+".json")
}

// read gives a valid token. It ignores a file that others can read or write.
func (c cache) read(name string) (stored, bool) {
	info, err := os.Stat(c.path(name))
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		return stored{}, false
	}
	text, err := os.ReadFile(c.path(name))
	var f file
	if err != nil || json.Unmarshal(text, &f) != nil {
		return stored{}, false
	}
	found := stored{Token: domain.Secret(f.Token), ExpiresAt: f.ExpiresAt}
	if !found.isValid() {
		return stored{}, false
	}
	return found, true
}

func (c cache) write(name string, s stored) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	return files.Create(c.path(name), 0o600, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(file{Token: s.Token.Reveal(), ExpiresAt: s.ExpiresAt})
	})
}

func (c cache) remove(name string) error {
	if err := os.Remove(c.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
