//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const mostRejected = 60 // requests of one client, because its project has too many in flight

// load sends requests from that many clients at once until stop is closed or each has sent its share (0 = no end). It
// gives the request ids that were answered with 200, and every other answer. A client whose project has too many
// requests in flight sends its own again.
func load(t testing.TB, c *testkit.Client, path string, clients, each int, stop <-chan struct{}) (ids []string,
	failed []string,
) {
	t.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			rejected := 0
			for n := 0; each == 0 || n < each; n++ {
				select {
				case <-stop:
					return
				default:
				}
				answer, err := c.Try(t, http.MethodGet, path, "")
				mu.Lock()
				switch {
				case err == nil && answer.Status == http.StatusTooManyRequests && rejected < mostRejected:
					rejected++
					n--
				case err != nil:
					failed = append(failed, err.Error())
				case answer.Status != http.StatusOK:
					failed = append(failed, fmt.Sprintf("%d %s", answer.Status, answer.Body))
				default:
					ids = append(ids, answer.Header.Get("X-Request-Id"))
				}
				mu.Unlock()
				if answer.Status == http.StatusTooManyRequests {
					time.Sleep(time.Second) // Retry-After
				}
			}
		})
	}
	group.Wait()
	return ids, failed
}

// inLog checks that the request log has exactly one row for each of the ids.
func inLog(t testing.TB, ids []string) {
	t.Helper()
	conn := testkit.Connect(t, databaseURL)
	rows := testkit.Scalar[int](t, conn, "select count(*) from requests where request_id = any($1)", ids)
	distinct := testkit.Scalar[int](t, conn,
		"select count(distinct request_id) from requests where request_id = any($1)", ids)
	if rows != len(ids) || distinct != len(ids) {
		t.Errorf("%d requests were answered, the log has %d rows for %d of them", len(ids), rows, distinct)
	}
}

func noneFailed(t testing.TB, failed []string) {
	t.Helper()
	if len(failed) > 0 {
		t.Errorf("%d answers failed, such as %s", len(failed), failed[0])
	}
}

// TestScaleUp sends 200 requests at once, all the time, and deletes pods meanwhile: several pods answer, no answer
// fails, and the request log has every one.
func TestScaleUp(t *testing.T) {
	project := testkit.NewProject(t)
	c := client(t, "servers", project.Token(t))
	toZero(t, "servers")
	done := make(chan struct{})
	peak, deleted := 0, 0
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(3 * time.Second):
			}
			peak = max(peak, ready("servers"))
			list, _ := pods("servers")
			if len(list) < 2 || deleted == 4 {
				continue
			}
			victim := list[rand.IntN(len(list))].Metadata.Name
			if _, err := try("kubectl", "-n", namespace, "delete", "pod", victim, "--wait=false"); err == nil {
				deleted++
			}
		}
	})
	began := time.Now()
	ids, failed := load(t, c, "/v1/servers?limit=1", 200, 6, nil)
	took := time.Since(began)
	close(done)
	watch.Wait()
	noneFailed(t, failed)
	inLog(t, ids)
	fmt.Printf("\n200 clients at once: %d answers in %s, %d failed, %d pods at the most, %d deleted meanwhile\n",
		len(ids)+len(failed), took.Round(time.Second), len(failed), peak, deleted)
	if peak < 2 || deleted == 0 {
		t.Errorf("there were %d pods at the most, %d were deleted: this shows nothing", peak, deleted)
	}
}
