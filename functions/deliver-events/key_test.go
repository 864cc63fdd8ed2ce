package deliverevents

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMissingKey: a secret whose key the operator has lost suspends no callback and abandons no event, however long
// that lasts; all is delivered once the key is back.
func TestMissingKey(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	signs := secret()
	receiver := testkit.NewSignedReceiver(t, signs)
	id := testkit.AddCallback(t, conn, project, receiver.URL, domain.CallbackVerified, signs, "")
	instances := subjects(1)
	testkit.AddEvents(t, conn, project, instances, 2)
	lost := env(t, database)
	lost["SEAL_PUBLIC_KEY"], lost["SEAL_PRIVATE_KEY"] = testkit.ManagedPublicKey, testkit.ManagedPrivateKey
	without := start(t, lost)
	for range 3 {
		without.Tick(t, "deliver-events")
		if _, err := conn.Exec(t.Context(), `update streams set next_at = now(),
failing_since = failing_since - interval '30 days';
update callbacks set not_before = now(), failing_since = failing_since - interval '30 days'`); err != nil {
			t.Fatal(err)
		}
	}
	status := testkit.Scalar[string](t, conn, `select c.status || ' ' || c.failures || ' ' || d.status || ' ' || d.error
from callbacks c join deliveries d on d.callback_id = c.id where c.id = $1 order by d.seq limit 1`, id)
	const want = "verified 0 due waits for the operator: the secret that signs it cannot be decrypted"
	if status != want || receiver.Posts() != 0 {
		t.Errorf("got %q, want %q; %d requests", status, want, receiver.Posts())
	}
	start(t, env(t, database)).Tick(t, "deliver-events")
	complete(t, time.Second, receiver, instances, 2)
}
