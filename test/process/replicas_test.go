package process_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongEveryAnswerHasItsRow has 64 clients call three replicas, while one after the other is killed: an
// answer that arrived has its row.
func TestLongEveryAnswerHasItsRow(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	token := testkit.Token(t, "demo")
	env := testkit.DaemonEnv(t, database)
	var mu sync.Mutex
	replicas := make([]*testkit.Process, 3)
	for i := range replicas {
		replicas[i] = testkit.Spawn(t, env)
	}
	paths := []string{"/v1/stats", "/v1/requests?limit=1", "/v1/nothing", "/v1/stats?hours=0"}
	var answered, lost atomic.Int64
	var done atomic.Bool
	ids := make([]map[string]int, 64)
	var clients sync.WaitGroup
	for c := range ids {
		ids[c] = map[string]int{}
		clients.Go(func() {
			for !done.Load() {
				mu.Lock()
				p := replicas[rand.IntN(len(replicas))]
				mu.Unlock()
				who := []string{token, "garbage", ""}[rand.IntN(3)]
				a, err := p.As(who).Try(t, "GET", paths[rand.IntN(len(paths))], "")
				if err != nil {
					lost.Add(1)
					time.Sleep(10 * time.Millisecond)
					continue
				}
				answered.Add(1)
				ids[c][a.Header.Get("X-Request-Id")] = a.Status
			}
		})
	}
	kills := 0
	// A busy machine gets there later, and shows the same.
	for last := time.Now().Add(3 * time.Minute); time.Now().Before(last) && (answered.Load() < 500 || kills < 10); {
		time.Sleep(time.Duration(300+rand.IntN(500)) * time.Millisecond)
		i := rand.IntN(len(replicas))
		replicas[i].Kill()
		kills++
		for line := range strings.Lines(replicas[i].Log()) {
			if strings.Contains(line, `"ERROR"`) {
				t.Log(line)
			}
		}
		p := testkit.Spawn(t, env)
		mu.Lock()
		replicas[i] = p
		mu.Unlock()
	}
	done.Store(true)
	clients.Wait()

	conn := testkit.Connect(t, database)
	missing, wrong := 0, 0
	rows := testkit.Pairs(t, conn, "select request_id, status::int from requests")
	for _, mine := range ids {
		for id, status := range mine {
			got, ok := rows[id]
			switch {
			case !ok && status == 503: // the one answer that says there is no row
			case !ok:
				missing++
			case got != status:
				wrong++
			}
		}
	}
	t.Logf("%d answers, %d requests without one, %d kills", answered.Load(), lost.Load(), kills)
	if missing+wrong > 0 {
		t.Errorf("%d answers have no row, %d another status", missing, wrong)
	}
	if answered.Load() < 500 || kills < 10 {
		t.Error("too few answers and kills to show anything")
	}
}
