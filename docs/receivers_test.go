package docs

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// receivers are the files that the page refers to, with the language of their excerpts.
var receivers = map[string]struct{ language, file string }{
	"go":     {"go", "receivers/go/main.go"},
	"python": {"python", "receivers/python/receiver.py"},
	"node":   {"js", "receivers/node/receiver.mjs"},
}

// TestThePageShowsTheReceivers compares the excerpts on the page with the receivers' files, byte by byte.
func TestThePageShowsTheReceivers(t *testing.T) {
	t.Parallel()
	shown := map[string]string{}
	for _, b := range blocks(t, "receive-callbacks.md") {
		shown[b.language] += b.text
	}
	for name, r := range receivers {
		if excerpt := shown[r.language]; len(excerpt) < 300 || !strings.Contains(read(t, r.file), excerpt) {
			t.Errorf("receive-callbacks.md shows something else than %s (%s)", r.file, name)
		}
	}
}

// program is a running receiver.
type program struct {
	url string
	cmd *exec.Cmd

	mu   sync.Mutex
	text []byte
}

// command returns the command line of a receiver. It may build for a while, so the caller chooses a port afterwards.
func command(t *testing.T, name string) []string {
	t.Helper()
	switch file := receivers[name].file; name {
	case "go":
		return []string{testkit.Program(t, "receiver")}
	case "python":
		return []string{tool(t, "python3", "python3"), file}
	default:
		return []string{tool(t, "node", "nodejs"), file}
	}
}

// start runs a receiver until the test ends, and waits until it serves.
func start(t *testing.T, run []string, port, secret, until string) *program {
	t.Helper()
	name := filepath.Base(run[len(run)-1])
	p := &program{url: "http://127.0.0.1:" + port + "/", cmd: exec.Command(run[0], run[1:]...)}
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PORT=" + port, "SECRET=" + secret, "UNTIL=" + until}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.end(); t.Failed() {
			t.Logf("%s printed:\n%s", name, p.text)
		}
	})
	testkit.Eventually(t, stepLimit, name+" serves", func() bool {
		resp, err := http.Get(p.url)
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	return p
}

func (p *program) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// Write collects the output of the program.
func (p *program) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = append(p.text, text...)
	return len(text), nil
}

// output returns all that was printed.
func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.text)
}

// printed returns the printed events whose lines contain the text.
func (p *program) printed(holds string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var events []string
	for line := range bytes.Lines(p.text) {
		line, whole := strings.CutSuffix(string(line), "\n")
		if whole && strings.HasPrefix(line, "cloudfn.") && strings.Contains(line, holds) {
			events = append(events, line)
		}
	}
	return events
}

// delivery is a request as cloudfn sends it. Tests tamper with it.
type delivery struct {
	id, body, signature string
	at                  time.Time
}

func sign(t *testing.T, secret, id, body string, at time.Time) delivery {
	t.Helper()
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := wh.Sign(id, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return delivery{id, body, signature, at}
}

// send posts a delivery and returns the status of the answer.
func send(t *testing.T, url string, d delivery) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(d.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Ce-Type", "cloudfn.instance.state.v1")
	req.Header.Set("Webhook-Id", d.id)
	req.Header.Set("Webhook-Timestamp", strconv.FormatInt(d.at.Unix(), 10))
	req.Header.Set("Webhook-Signature", d.signature)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// TestLongReceiversVerify: receivers reject forged, old and altered events, accept two signatures, and print an event
// once.
func TestLongReceiversVerify(t *testing.T) {
	t.Parallel()
	const id, body = "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11:", `{"state": "active"}`
	secret, other := "whsec_dGhpcyBpcyB0aGUgc2VjcmV0IG9mIGEgdGVzdA==",
		"whsec_YW5vdGhlciBzZWNyZXQgdGhhdCBpcyBub3QgaGVycw=="
	for name := range receivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := command(t, name)
			p := start(t, run, testkit.FreePort(t), secret, "")
			if text := p.output(); strings.Contains(text, "Unsupported method") {
				t.Errorf("it prints an error while it is checked:\n%s", text)
			}
			now := time.Now() // not before t.Parallel, which may wait for minutes
			good := sign(t, secret, id+"7", body, now)
			tampered := map[string]func(delivery) delivery{
				"signed by another": func(delivery) delivery { return sign(t, other, id+"7", body, now) },
				"six minutes old": func(delivery) delivery {
					return sign(t, secret, id+"7", body, now.Add(-6*time.Minute))
				},
				"six minutes early": func(delivery) delivery {
					return sign(t, secret, id+"7", body, now.Add(6*time.Minute))
				},
				"another body":          func(d delivery) delivery { d.body = `{"state": "error"}`; return d },
				"another id":            func(d delivery) delivery { d.id = id + "8"; return d },
				"another time":          func(d delivery) delivery { d.at = d.at.Add(2 * time.Second); return d },
				"no signature":          func(d delivery) delivery { d.signature = ""; return d },
				"an empty signature":    func(d delivery) delivery { d.signature = "v1,"; return d },
				"half of one":           func(d delivery) delivery { d.signature = d.signature[:20]; return d },
				"of another version":    func(d delivery) delivery { d.signature = "v2" + d.signature[2:]; return d },
				"invalid base64":        func(d delivery) delivery { d.signature = "v1,%%% é"; return d },
				"a time without an end": func(d delivery) delivery { d.at = time.Unix(1<<61, 0); return d },
				"two that are by another": func(d delivery) delivery {
					s := sign(t, other, d.id, body, now).signature
					d.signature = s + " " + s
					return d
				},
			}
			for what, tamper := range tampered {
				if status := send(t, p.url, tamper(good)); status != http.StatusUnauthorized {
					t.Errorf("%s: it answered %d", what, status)
				}
			}
			if status := send(t, p.url, sign(t, secret, id+"x", body, now)); status != http.StatusBadRequest {
				t.Errorf("signed, and without a sequence: it answered %d", status)
			}
			if status := send(t, p.url, sign(t, secret, id+"7", "[1]", now)); status != http.StatusBadRequest {
				t.Errorf("signed, and no object: it answered %d", status)
			}
			twice := good
			twice.signature = sign(t, other, id+"7", body, now).signature + " " + good.signature
			next, late := sign(t, secret, id+"8", `{"state": "stopped"}`, now), sign(t, secret, id+"6", body, now)
			for _, d := range []delivery{good, twice, good, next, late} {
				if status := send(t, p.url, d); status != http.StatusNoContent {
					t.Errorf("%s: it answered %d", d.id, status)
				}
			}
			prefix := "cloudfn.instance.state.v1 " + strings.TrimSuffix(id, ":") + " "
			want := []string{prefix + "7 active", prefix + "8 stopped", prefix + "6 active late"}
			testkit.Eventually(t, stepLimit, "it prints three events", func() bool { return len(p.printed("")) == 3 })
			if got := p.printed(""); !slices.Equal(got, want) {
				t.Errorf("it printed %q, want %q", got, want)
			}
			consents(t, p.url)
		})
	}
}

// consents checks that a receiver consents to cloudfn only.
func consents(t *testing.T, url string) {
	t.Helper()
	for origin, want := range map[string]string{"cloudfn": "cloudfn", "evil.example": "", "": ""} {
		req, err := http.NewRequest(http.MethodOptions, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("WebHook-Request-Origin", origin)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if got := resp.Header.Get("WebHook-Allowed-Origin"); got != want || (resp.StatusCode < 300) != (want != "") {
			t.Errorf("origin %q: it answered %d, allowing %q", origin, resp.StatusCode, got)
		}
	}
}
