package launch

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestGeneratedKey is made once, told once, and stored nowhere.
func TestGeneratedKey(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	id := uuid.NewString()
	request := body(t, object{"id": id, "generate_key": true})
	var order answer
	app.Post(t, "/v1/launch", request).JSON(t, &order)
	key, err := ssh.ParsePrivateKey([]byte(order.PrivateKey))
	if err != nil {
		t.Fatalf("%v: %+v", err, order)
	}
	name := "cloudfn-" + id
	held, _, _, _, err := ssh.ParseAuthorizedKey([]byte(p.KeyPairs(t)[name]))
	if err != nil || string(held.Marshal()) != string(key.PublicKey().Marshal()) {
		t.Errorf("Nova holds %v (%v), which is not the public half", held, err)
	}
	if made := p.Servers(t); len(made) != 1 || made[0].KeyName != name || order.Instances[0].KeyName != name {
		t.Errorf("the server is %+v, the order %+v", made, order)
	}
	conn := testkit.Connect(t, database)
	if got := testkit.Scalar[string](t, conn, "select key_fingerprint from instances"); got != ssh.FingerprintLegacyMD5(held) {
		t.Errorf("the fingerprint is %q, want %q", got, ssh.FingerprintLegacyMD5(held))
	}
	for _, line := range strings.Split(order.PrivateKey, "\n")[1:3] {
		if strings.Contains(testkit.Dump(t, database), line) {
			t.Error("the private key is in the database")
		}
	}
	var again answer
	app.Post(t, "/v1/launch", request).JSON(t, &again)
	if again.PrivateKey != "" || again.ID != order.ID {
		t.Errorf("sent again: %+v", again)
	}
	// Of an order that Nova refuses no key pair is left.
	if a := app.Post(t, "/v1/launch", body(t, object{"generate_key": true, "availability_zone": "nowhere"})); a.Status != 400 {
		t.Errorf("refused: got %d %s", a.Status, a.Body)
	}
	if keys := p.KeyPairs(t); len(keys) != 1 {
		t.Errorf("key pairs: %v", keys)
	}
}

// TestKeyOfACopyThatDied before it had made a server: the private half died with it, so whoever goes on makes a new pair.
func TestKeyOfACopyThatDied(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	text := body(t, object{"id": uuid.NewString(), "generate_key": true})
	var first, second answer
	app.Post(t, "/v1/launch", text).JSON(t, &first)
	// What was there of it when it died: the order, and the key pair.
	conn := testkit.Connect(t, database)
	for _, s := range p.Servers(t) {
		p.Delete(t, s.ID)
	}
	if _, err := conn.Exec(t.Context(), "update instances set server_id = null, state = 'requested', seen_at = null, key_fingerprint = ''"); err != nil {
		t.Fatal(err)
	}
	app.Post(t, "/v1/launch", text).JSON(t, &second)
	key, err := ssh.ParsePrivateKey([]byte(second.PrivateKey))
	if err != nil || second.PrivateKey == first.PrivateKey {
		t.Fatalf("%v: first %+v, then %+v", err, first, second)
	}
	for _, public := range p.KeyPairs(t) {
		if !strings.Contains(string(ssh.MarshalAuthorizedKey(key.PublicKey())), strings.Fields(public)[1]) {
			t.Errorf("Nova holds %s, which is not the public half", public)
		}
	}
}
