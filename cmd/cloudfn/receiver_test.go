package main

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func receiver(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "receiver NAME")
	ts.Setenv(args[0], testkit.NewReceiver(tb(ts), func(http.ResponseWriter, *http.Request) {}).URL)
}

func forge(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "forge URL")
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, args[0],
		strings.NewReader(`{"state":"active"}`))
	ts.Check(err)
	other, err := standardwebhooks.NewWebhook("whsec_" + strings.Repeat("A", 32))
	ts.Check(err)
	now := time.Now()
	signature, err := other.Sign("forged:1", now, []byte(`{"state":"active"}`))
	ts.Check(err)
	for name, value := range map[string]string{
		"Ce-Id": "forged:1", "Ce-Type": "cloudfn.instance.state.v1", "Webhook-Id": "forged:1",
		"Webhook-Timestamp": strconv.FormatInt(now.Unix(), 10), "Webhook-Signature": signature,
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	ts.Check(err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		ts.Fatalf("a forged event was answered with %d", resp.StatusCode)
	}
}
