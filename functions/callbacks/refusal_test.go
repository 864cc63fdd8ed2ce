package callbacks

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestRejectsInvalidRequests(t *testing.T) {
	t.Parallel()
	env := testkit.Env(t, testkit.Database(t), map[string]string{"CALLBACK_ALLOW": "10.1.0.0/16"})
	app := testkit.Start(t, env, Function).As(testkit.Token(t, "demo"))
	c := create(t, app, `{"url": "http://10.1.2.3/x", "secret": "`+given+`"}`)
	t.Cleanup(func() { app.Do(t, "DELETE", "/v1/callbacks/"+c.ID.String(), "") })
	path := "/v1/callbacks/" + c.ID.String()
	const good = `"url": "https://receiver.example.com"`
	for _, tc := range []struct{ method, path, body, field string }{
		{"POST", "", `{}`, "url"},
		{"POST", "", `{"url": ""}`, "url"},
		{"POST", "", `{"url": "http://receiver.example.com@127.0.0.1"}`, "url"},
		{"POST", "", `{"url": "https://127.0.0.1"}`, "url"},
		{"POST", "", `{"url": "https://169.254.169.254/latest"}`, "url"},
		{"POST", "", `{"url": "http://1.1.1.1"}`, "url"},
		{"POST", "", `{"url": 5}`, "url"},
		{"POST", "", `{` + good + `, "events": ["x"]}`, "events[0]"},
		{"POST", "", `{` + good + `, "events": ["cloudfn.callback.test.v1"]}`, "events[0]"},
		{"POST", "", `{` + good + `, "events": "x"}`, "events"},
		{"POST", "", `{` + good + `, "instance_id": "x"}`, "instance_id"},
		{"POST", "", `{` + good + `, "instance_id": ""}`, "instance_id"},
		{"POST", "", `{` + good + `, "order_id": "00000000-0000-0000-0000-000000000000"}`, "order_id"},
		{
			"POST", "", `{` + good + `, "order_id": "` + uuid.NewString() + `", "instance_id": "` + uuid.NewString() + `"}`,
			"order_id",
		},
		{"POST", "", `{` + good + `, "secret": ""}`, "secret"},
		{"POST", "", `{` + good + `, "secret": "whsec_short"}`, "secret"},
		{"POST", "", `{` + good + `, "id": "x"}`, "id"},
		{"POST", "", `{` + good + `, "status": "verified"}`, "status"},
		{"POST", "?x=y", `{` + good + `}`, "x"},
		{"PATCH", path, `{"status": "gone"}`, "status"},
		{"PATCH", path, `{"status": "pending"}`, "status"},
		{"PATCH", path, `{"url": "http://127.0.0.1"}`, "url"},
		{"PATCH", path, `{"events": ["x"]}`, "events[0]"},
		{"PATCH", path, `{"secret": "` + given + `"}`, "secret"},
		{"PATCH", path, `{"order_id": null}`, "order_id"},
		{"POST", path + "/secret", `{"overlap": "169h"}`, "overlap"},
		{"POST", path + "/secret", `{"overlap": "-1s"}`, "overlap"},
		{"POST", path + "/secret", `{"overlap": 5}`, "overlap"},
		{"POST", path + "/secret", `{"overlap": ""}`, "overlap"},
		{"POST", path + "/secret", `{"secret": "` + given + `!"}`, "secret"},
		{"GET", "?limit=1001", "", "limit"},
		{"GET", "?marker=x", "", "marker"},
		{"GET", "?status=dead", "", "status"},
	} {
		full := tc.path
		if !strings.HasPrefix(full, "/") {
			full = "/v1/callbacks" + full
		}
		if a := app.Do(t, tc.method, full, tc.body, "Content-Type", "application/json"); a.Status != 400 ||
			!testkit.Names(t, a, tc.field) || strings.Contains(string(a.Body), "Y2Fu") {
			t.Errorf("%s %s %s: got %d %s, want 400 that names %s", tc.method, full, tc.body, a.Status, a.Body,
				tc.field)
		}
	}
	for _, tc := range []struct {
		method, path, body string
		want               int
	}{
		{"PATCH", path, `{}`, 400},
		{"PATCH", path, ``, 400},
		{"POST", "/v1/callbacks", ``, 400},
		{"PUT", path, `{}`, 405},
		{"PATCH", "/v1/callbacks", `{}`, 405},
		{"GET", "/v1/callbacks/x", "", 404},
		{"GET", "/v1/callbacks/" + strings.ReplaceAll(c.ID.String(), "-", ""), "", 404},
		{"GET", "/v1/callbacks/" + strings.ToUpper(c.ID.String()), "", 200},
		{"GET", "/v1/callbacks/x/deliveries", "", 404},
		{"POST", "/v1/callbacks/x/test", "", 404},
		{"GET", path + "/test", "", 405},
	} {
		if a := app.Do(t, tc.method, tc.path, tc.body, "Content-Type", "application/json"); a.Status != tc.want {
			t.Errorf("%s %s: got %d %s, want %d", tc.method, tc.path, a.Status, a.Body, tc.want)
		}
	}
	if a := app.As("").Get(t, "/v1/callbacks"); a.Status != 401 {
		t.Errorf("without a token: %d", a.Status)
	}
	if a := app.As(testkit.DomainToken(t)).Get(t, "/v1/callbacks"); a.Status != 403 {
		t.Errorf("with a domain's token: %d", a.Status)
	}
}

// TestSecretsAreNotLogged runs a process of its own, which needs a key.
func TestSecretsAreNotLogged(t *testing.T) {
	t.Parallel()
	env := testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "callbacks", "LOG_LEVEL": "DEBUG",
		"SEAL_PRIVATE_KEY": "", "OS_CLOUD": "demo",
	})
	process := testkit.Spawn(t, env)
	app := process.As(testkit.Token(t, "demo"))
	c := create(t, app, `{"url": "https://receiver.example.com/hook?key=canary", "secret": "`+given+`"}`)
	if a := app.Post(t, "/v1/callbacks/"+c.ID.String()+"/test", ""); a.Status != 202 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	app.Post(t, "/v1/callbacks", `{"url": "https://u:canary@127.0.0.1/?canary", "secret": "`+given+`x"}`)
	if code := process.Terminate(t, 10*time.Second); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if log := process.Log(); strings.Contains(log, "canary") || strings.Contains(log, "Y2Fu") ||
		strings.Contains(log, "whsec") {
		t.Errorf("the log is %s", log)
	}
	for value, reason := range map[string]string{
		"": "is empty", "x": "does not begin",
		testkit.SealPrivateKey: "does not begin",
	} {
		env["SEAL_PUBLIC_KEY"] = value
		code, out := testkit.Run(t, env)
		if code != 1 || !strings.Contains(out, "SEAL_PUBLIC_KEY "+reason) || !strings.Contains(out, "cloudfnd keys") ||
			strings.Count(out, "\n") != 1 || strings.Contains(out, "sealkey_U") {
			t.Errorf("SEAL_PUBLIC_KEY=%s: %d %s", value, code, out)
		}
	}
	code, out := testkit.Run(t, nil, "keys")
	keys := map[string]string{}
	for line := range strings.Lines(out) {
		name, key, _ := strings.Cut(strings.TrimSpace(line), "=")
		keys[name] = key
	}
	for _, prefix := range []string{"SEAL", "CONNECTION", "MANAGED"} {
		_, err := seal.ParsePublicKey(keys[prefix+"_PUBLIC_KEY"])
		_, err2 := seal.ParsePrivateKeys(domain.Secret(keys[prefix+"_PRIVATE_KEY"]))
		if code != 0 || len(keys) != 6 || err != nil || err2 != nil {
			t.Errorf("keys: %d %s: %v %v", code, out, err, err2)
		}
	}
}
