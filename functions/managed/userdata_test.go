package managed

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestUserDataBytes: user_data may be bytes that are no text, such as a compressed file. They are stored as they are,
// and the same in either form is no other revision.
func TestUserDataBytes(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	keys, err := seal.ManagedOpenConfig{ManagedPrivateKey: testkit.ManagedPrivateKey}.Keys()
	if err != nil {
		t.Fatal(err)
	}
	const path = machines + "web"
	with := func(field, value string) string {
		return `{"spec": ` + strings.TrimSuffix(machine, "}") + fmt.Sprintf(", %q: %q}}", field, value)
	}
	stored := func() string {
		t.Helper()
		loaded, err := f.store.Load(t.Context(), f.project.ID)
		if err != nil || len(loaded) != 1 {
			t.Fatalf("loaded %+v, %v", loaded, err)
		}
		var secrets domain.ManagedSecrets
		text, err := keys.Open(loaded[0].SealedFor(), loaded[0].Secrets)
		if err != nil || json.Unmarshal([]byte(text.Reveal()), &secrets) != nil {
			t.Fatalf("reconcile-managed cannot open the secrets: %v", err)
		}
		return string(secrets.UserData)
	}
	for n, data := range []string{"\x1f\x8b\x08\xff\x00\xfe", "#!/bin/sh"} {
		text := base64.StdEncoding.EncodeToString([]byte(data))
		a := declare(t, f.Client, path, with("user_data_base64", text[:4]+"\n"+text[4:])) // as the command base64 wraps
		m := declared(t, a, []int{http.StatusCreated, http.StatusOK}[n])
		if got := stored(); got != data || len(m.SecretFields) != 1 || m.Revision != n+1 ||
			strings.Contains(string(a.Body), text) {
			t.Errorf("stored are %q, and the answer is %s", got, a.Body)
		}
	}
	m := declared(t, declare(t, f.Client, path, with("user_data", "#!/bin/sh")), http.StatusOK)
	if m.Revision != 2 {
		t.Errorf("the same as text is revision %d", m.Revision)
	}
	m = declared(t, declare(t, f.Client, path, with("user_data_base64", "")), http.StatusOK)
	if len(m.SecretFields) != 0 {
		t.Errorf("removed is %+v", m)
	}
	long := base64.StdEncoding.EncodeToString(make([]byte, domain.MaxUserData+1))
	refused(t, declare(t, f.Client, path, with("user_data_base64", long)), 400, "invalid", "spec.user_data_base64")
	template := strings.Replace(with("user_data_base64", "eA=="), "{", `{"kind": "VirtualMachine", `, 1)
	refused(t, f.Do(t, "PUT", "/v1/flavors/a", template, "Content-Type", "application/json"), 400, "invalid",
		"spec.user_data_base64")
}

// TestNearestField: an unknown field of a spec is named with its path, and with the field that was probably meant.
func TestNearestField(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const unknown = " is not a field of this request; "
	for fields, want := range map[string]string{
		`"flavr": "a", "image": "a"`:    "spec.flavr:" + unknown + `did you mean "flavor"?`,
		`"shade": 1, "flavor": "a"`:     "spec.shade:" + unknown + "expected one of configmaps, flavor, ",
		`"Key_name": "x", "image": "a"`: `did you mean "key_name"?`,
	} {
		var problem struct{ Detail string }
		a := declare(t, f.Client, machines+"a", `{"spec": {`+fields+`, "networks": ["a"]}}`)
		if a.JSON(t, &problem); a.Status != 400 || !strings.Contains(problem.Detail, want) {
			t.Errorf("%s: got %d %s", fields, a.Status, problem.Detail)
		}
	}
	var problem struct{ Detail string }
	declare(t, f.Client, "/v1/managed/Loadbalancer/a",
		`{"spec": {"network": "a", "listeners": [{"ports": "TCP"}]}}`).JSON(t, &problem)
	if !strings.Contains(problem.Detail, "spec.listeners[0].ports:"+unknown+`did you mean "port"?`) {
		t.Errorf("got %s", problem.Detail)
	}
}
