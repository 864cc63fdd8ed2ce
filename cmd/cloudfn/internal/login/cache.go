package login

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// cache keeps tokens in files that only their user can read, one for each login. No password is in them, or in their names.
type cache struct{ dir string }

// kept is what such a file holds.
type kept struct {
	Token     domain.Secret
	ExpiresAt time.Time
}

// good says that there is a token, and that it does not end soon.
func (k kept) good() bool { return k.Token != "" && time.Until(k.ExpiresAt) >= early }

// file is kept's JSON: domain.Secret would not give the token.
type file struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// early is how long before its end a token counts as over, so that no call begins with it that ends without.
const early = 2 * time.Minute

// cacheDir is CLOUDFN_CACHE_DIR, else the system's place for such files.
func cacheDir(env func(string) (string, bool)) (string, error) {
	if dir, ok := env("CLOUDFN_CACHE_DIR"); ok && dir != "" {
		return dir, nil
	}
	if dir, ok := env("XDG_CACHE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "cloudfn"), nil
	}
	home, ok := env("HOME")
	if !ok || home == "" {
		return "", errors.New("HOME is not set: set CLOUDFN_CACHE_DIR to where tokens may be kept")
	}
	return filepath.Join(home, ".cache", "cloudfn"), nil
}

func (c cache) path(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(c.dir, "token-"+hex.EncodeToString(sum[:12])+".json")
}

// read gives a token that is still good. A file that others can read is not believed.
func (c cache) read(name string) (kept, bool) {
	info, err := os.Stat(c.path(name))
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		return kept{}, false
	}
	text, err := os.ReadFile(c.path(name))
	if err != nil {
		return kept{}, false
	}
	var f file
	if json.Unmarshal(text, &f) != nil {
		return kept{}, false
	}
	found := kept{Token: domain.Secret(f.Token), ExpiresAt: f.ExpiresAt}
	if !found.good() {
		return kept{}, false
	}
	return found, true
}

// write replaces the file whole, so that two commands at once both find one that is right.
func (c cache) write(name string, k kept) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(file{Token: k.Token.Reveal(), ExpiresAt: k.ExpiresAt})
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(c.dir, "token-*.new") // 0600
	if err != nil {
		return err
	}
	_, err = temporary.Write(text)
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), c.path(name))
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}

func (c cache) remove(name string) error {
	if err := os.Remove(c.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
