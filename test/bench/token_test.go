//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	tokenCount  = 20
	tokenAtOnce = 100  // callers with the same token, at the same time, at first
	tokenHot    = 1000 // checks after that, and in each round
	tokenCold   = 20   // checks at Keystone in each round
	tokenRounds = 6
)

// TestToken holds a token check that is remembered against one that asks Keystone, and counts how often
// Keystone is asked when many come at once.
func TestToken(t *testing.T) {
	waitForKeystone(t)
	cloud := sandboxCloud(t)
	tokens := projectTokens(t, testkit.NewProject(t))
	var asked atomic.Int64
	authenticator := auth.New(auth.Config{},
		func(ctx context.Context, token domain.Secret) (domain.Identity, error) {
			asked.Add(1)
			return cloud.Validate(ctx, token)
		})
	storm(t, authenticator, tokens)
	for i := range tokenHot {
		check(t, authenticator, tokens[i%len(tokens)])
	}
	if n := asked.Load(); n != tokenCount {
		t.Errorf("keystone was asked %d times about %d tokens", n, tokenCount)
	}
	report(result{
		number: "2b", name: fmt.Sprintf("Keystone calls for %d tokens x %d at once + %d : tokens", tokenCount,
			tokenAtOnce, tokenHot),
		ours: strconv.FormatInt(asked.Load(), 10), peer: strconv.Itoa(tokenCount),
		ratio: float64(asked.Load()) / tokenCount, target: atMost(1),
	})

	var hot, cold []float64
	alternate(tokenRounds,
		func() {
			for i := range tokenHot {
				hot = append(hot, timed(func() { check(t, authenticator, tokens[i%len(tokens)]) }))
			}
		},
		func() {
			for i := range tokenCold {
				cold = append(cold, timed(func() { validate(t, cloud, tokens[i%len(tokens)]) }))
			}
		})
	report(result{
		number: "2a", name: "token check, remembered, p50 : Keystone each time",
		ours: showMS(median(hot)), peer: showMS(median(cold)), ratio: median(hot) / median(cold), target: atMost(0.01),
	})
}

func projectTokens(t *testing.T, project *testkit.Project) []string {
	t.Helper()
	tokens := make([]string, tokenCount)
	for i := range tokens {
		tokens[i] = project.Token(t)
	}
	return tokens
}

// storm checks every token for the first time, by many callers at once.
func storm(t *testing.T, authenticator *auth.Authenticator, tokens []string) {
	t.Helper()
	start := make(chan struct{})
	var group sync.WaitGroup
	for _, token := range tokens {
		for range tokenAtOnce {
			group.Go(func() {
				<-start
				check(t, authenticator, token)
			})
		}
	}
	close(start)
	group.Wait()
}

func check(t *testing.T, authenticator *auth.Authenticator, token string) {
	r := &http.Request{Header: http.Header{"X-Auth-Token": {token}}}
	if _, err := authenticator.Authenticate(context.Background(), r); err != nil {
		t.Errorf("a good token was refused: %v", err)
	}
}

func validate(t *testing.T, cloud *openstack.Cloud, token string) {
	if _, err := cloud.Validate(context.Background(), domain.Secret(token)); err != nil {
		t.Errorf("a good token was refused: %v", err)
	}
}
