package launch

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestGeneratedKey checks that the private key is in the first answer only, and stored nowhere.
func TestGeneratedKey(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	id := uuid.NewString()
	request := body(t, object{"id": id, "generate_key": true})
	var order Order
	app.Post(t, "/v1/launch", request).JSON(t, &order)
	key, err := ssh.ParsePrivateKey([]byte(order.PrivateKey))
	if err != nil {
		t.Fatalf("%v: %+v", err, order)
	}
	name := "cloudfn-" + id
	held, _, _, _, err := ssh.ParseAuthorizedKey([]byte(p.KeyPairs(t)[name]))
	if err != nil || string(held.Marshal()) != string(key.PublicKey().Marshal()) {
		t.Errorf("Nova has %v (%v), which is not the public half", held, err)
	}
	if made := p.Servers(t); len(made) != 1 || made[0].KeyName != name || order.Instances[0].KeyName != name {
		t.Errorf("the server is %+v, the order %+v", made, order)
	}
	conn := testkit.Connect(t, database)
	if got := testkit.Scalar[string](t, conn,
		"select key_fingerprint from instances"); got != ssh.FingerprintLegacyMD5(held) {
		t.Errorf("the fingerprint is %q, want %q", got, ssh.FingerprintLegacyMD5(held))
	}
	for _, line := range strings.Split(order.PrivateKey, "\n")[1:3] {
		if strings.Contains(testkit.Dump(t, database), line) {
			t.Error("the private key is in the database")
		}
	}
	var again Order
	app.Post(t, "/v1/launch", request).JSON(t, &again)
	if again.PrivateKey != "" || again.ID != order.ID {
		t.Errorf("the same request: %+v", again)
	}
	// An order that Nova rejects leaves no key pair.
	rejected := body(t, object{"generate_key": true, "availability_zone": "nowhere"})
	if a := app.Post(t, "/v1/launch", rejected); a.Status != 400 {
		t.Errorf("rejected: got %d %s", a.Status, a.Body)
	}
	if keys := p.KeyPairs(t); len(keys) != 1 {
		t.Errorf("key pairs: %v", keys)
	}
}

// TestKeyPairOfReader: who reads an order of another user keeps a key pair of the same name. Nova's key pairs are a
// user's, and an id of an order is a project's.
func TestKeyPairOfReader(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	other, id := testkit.BorrowProject(t), uuid.NewString()
	p.Grant(t, other.UserID, "member")
	p.SetQuota(t, 0)
	request := body(t, object{"id": id, "on_failure": "rollback", "generate_key": true})
	if a := app.Post(t, "/v1/launch", request); a.Status != 403 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	name, theirs := "cloudfn-"+id, other.Session(t)
	public, _, err := newKey(name)
	if err == nil {
		_, err = theirs.ImportKeyPair(t.Context(), name, public)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.DeleteKeyPair(context.Background(), name) })
	in := *other
	in.ID = p.ID
	reader := app.As(in.Token(t))
	kept := func(when string, a testkit.Answer, want int) {
		t.Helper()
		if a.Status != want || other.KeyPairs(t)[name] == "" {
			t.Errorf("%s: got %d %s, the keys %v", when, a.Status, a.Body, other.KeyPairs(t))
		}
	}
	kept("read", reader.Get(t, "/v1/launch/"+id), 200)
	kept("sent again", reader.Post(t, "/v1/launch", request), 200)
	conn := testkit.Connect(t, database)
	exec(t, conn, "update orders set status = 'running'")
	exec(t, conn, "update instances set state = 'requested', problem = null")
	kept("resumed", reader.Post(t, "/v1/launch", request), 409) // the order's pair would have that name
}

// TestLongGeneratedKeyAfterReplicaDied checks that a resumed order without servers gets a new key pair: the private
// half of the first is lost.
func TestLongGeneratedKeyAfterReplicaDied(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	text := body(t, object{"id": uuid.NewString(), "generate_key": true})
	var first, second Order
	app.Post(t, "/v1/launch", text).JSON(t, &first)
	// A replica that dies before its first server leaves the order and the key pair.
	conn := testkit.Connect(t, database)
	for _, s := range p.Servers(t) {
		p.Delete(t, s.ID)
	}
	exec(t, conn, `update instances
		set server_id = null, state = 'requested', seen_at = null, key_fingerprint = ''`)
	app.Post(t, "/v1/launch", text).JSON(t, &second)
	key, err := ssh.ParsePrivateKey([]byte(second.PrivateKey))
	if err != nil || second.PrivateKey == first.PrivateKey {
		t.Fatalf("%v: first %+v, then %+v", err, first, second)
	}
	for _, public := range p.KeyPairs(t) {
		if !strings.Contains(string(ssh.MarshalAuthorizedKey(key.PublicKey())), strings.Fields(public)[1]) {
			t.Errorf("Nova has %s, which is not the public half", public)
		}
	}
}
