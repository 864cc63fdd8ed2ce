package callbacks

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestHandshakeAndDelivery runs a daemon: the receiver gets the handshake at once, and then a signed test event.
func TestHandshakeAndDelivery(t *testing.T) {
	t.Parallel()
	type got struct {
		header http.Header
		body   []byte
	}
	events, asked := make(chan got, 10), make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			asked <- r.URL.Path
			w.Header().Set("WebHook-Allowed-Origin", r.Header.Get("WebHook-Request-Origin"))
			return
		}
		body, _ := io.ReadAll(r.Body)
		events <- got{r.Header, body}
	}))
	t.Cleanup(receiver.Close)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"OS_CLOUD": "demo", "STATS_BACKFILL": "1h"})
	app := testkit.Spawn(t, env).As(testkit.Token(t, "demo"))
	c := create(t, app, `{"url": "`+receiver.URL+`/hook?x=y", "order_id": null}`)
	path := "/v1/callbacks/" + c.ID.String()
	testkit.Eventually(t, 10*time.Second, "the receiver has consented", func() bool {
		var now Callback
		app.Get(t, path).JSON(t, &now)
		return now.Status == domain.CallbackVerified
	})
	if at := <-asked; at != "/hook" {
		t.Errorf("asked was %s", at)
	}
	var rotated shown
	app.Post(t, path+"/secret", "").JSON(t, &rotated)
	var test Delivery
	app.Post(t, path+"/test", "").JSON(t, &test)
	deliver := func() got {
		t.Helper()
		select {
		case e := <-events:
			return e
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was delivered")
		}
		return got{}
	}
	e := deliver()
	for name, secret := range map[string]string{"the secret before": c.Secret, "the new secret": rotated.Secret} {
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify(e.body, e.header); err != nil {
			t.Errorf("with %s: %v", name, err)
		}
	}
	if e.header.Get("Ce-Id") != test.EventID || e.header.Get("Ce-Type") != domain.CallbackTestEvent ||
		e.header.Get("Ce-Subject") != c.ID.String() {
		t.Errorf("got %v", e.header)
	}
	delivered := func(id uuid.UUID) func() bool {
		return func() bool {
			var list DeliveryPage
			app.Get(t, path+"/deliveries?status=delivered").JSON(t, &list)
			for _, d := range list.Deliveries {
				if d.ID == id && d.Answer == 200 && d.Attempts == 1 {
					return true
				}
			}
			return false
		}
	}
	testkit.Eventually(t, 5*time.Second, "the test is listed as delivered", delivered(test.ID))
	var again Delivery
	app.Post(t, path+"/deliveries/"+test.ID.String()+"/redeliver", "").JSON(t, &again)
	if e := deliver(); e.header.Get("Ce-Id") != test.EventID || e.header.Get("Webhook-Id") != test.EventID {
		t.Errorf("delivered again was %v", e.header)
	}
	testkit.Eventually(t, 5*time.Second, "it is listed as delivered again", delivered(again.ID))
}
