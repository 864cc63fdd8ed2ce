package webhook

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func TestSecrets(t *testing.T) {
	t.Parallel()
	encode := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, text := range []string{
		"whsec_" + encode(24), "whsec_" + encode(64), "whsec_" + encode(25), NewSecret().Reveal(),
	} {
		if err := CheckSecret(domain.Secret(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		"", "whsec_", encode(32), "whsec_" + encode(23), "whsec_" + encode(65), "whsec_" + encode(24) + "=",
		"whsec_" + encode(24) + "\n", "WHSEC_" + encode(24), "whsec_" + strings.Repeat("-_", 20),
	} {
		err := CheckSecret(domain.Secret(text))
		if e := apperr.As(err); err == nil || len(e.Fields) != 1 || e.Fields[0].Field != "secret" || len(text) > 10 &&
			strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if a, b := NewSecret(), NewSecret(); a == b {
		t.Error("two secrets are the same")
	}
	client := testClient(t, Config{Ranges: loopback, Timeout: time.Second}, nil)
	for _, secrets := range [][]domain.Secret{nil, {"canary"}} {
		if _, err := client.Send(t.Context(), "http://127.0.0.1:1", secrets, anEvent(1),
			time.Now()); apperr.CodeOf(err) != apperr.Internal || strings.Contains(err.Error(), "canary") {
			t.Errorf("%d secrets: %v", len(secrets), err)
		}
	}
}
