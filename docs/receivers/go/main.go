// Command receiver receives cloudfn's events: it consents, verifies, answers immediately, and processes them
// afterwards.
//
//	SECRET=whsec_... PORT=9000 go run .
package main

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	origin    = "cloudfn"       // the sender to accept; the operator may have set another name (CALLBACK_ORIGIN)
	tolerance = 5 * time.Minute // the largest difference of a timestamp: an older delivery is a replay
	largest   = 1 << 20         // bytes of a body
)

// event holds what this program uses of an event. The signature covers the id, which is subject:sequence, and not the
// Ce- headers, so subject and sequence are taken from the id.
type event struct {
	id, subject, kind string
	sequence          int
	Data              struct{ State, Status string }
}

type receiver struct {
	key   []byte
	queue chan event
	until string      // unsubscribe after an event with this state; "" means never
	over  atomic.Bool // that state was reached: unsubscribe
}

func main() {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("SECRET"), "whsec_"))
	if err != nil || len(key) < 24 {
		log.Fatal("SECRET must be the callback's secret: whsec_ and at least 24 bytes in base64")
	}
	r := &receiver{key: key, queue: make(chan event, 1000), until: os.Getenv("UNTIL")}
	go r.work()
	server := &http.Server{
		Addr: "127.0.0.1:" + cmp.Or(os.Getenv("PORT"), "9000"), Handler: r,
		ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	}
	log.Print("listening")
	log.Fatal(server.ListenAndServe())
}

// ServeHTTP answers the handshake (OPTIONS) and receives events (POST).
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch req.Method {
	case http.MethodOptions:
		if req.Header.Get("WebHook-Request-Origin") != origin {
			http.Error(w, "only "+origin+" may send here", http.StatusForbidden)
			return
		}
		w.Header().Set("WebHook-Allowed-Origin", origin)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodPost:
		w.WriteHeader(r.take(req))
	default:
		w.Header().Set("Allow", "OPTIONS, POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// take verifies and queues an event, and returns the status of the answer.
func (r *receiver) take(req *http.Request) int {
	body, err := io.ReadAll(io.LimitReader(req.Body, largest+1))
	if err != nil || len(body) > largest {
		return http.StatusBadRequest
	}
	if err := r.verify(req.Header, body); err != nil {
		log.Print("rejected: ", err)
		return http.StatusUnauthorized
	}
	if r.over.Load() {
		return http.StatusGone // ends the callback: nothing more is sent
	}
	e := event{id: req.Header.Get("Webhook-Id"), kind: req.Header.Get("Ce-Type")}
	subject, sequence, _ := strings.Cut(e.id, ":")
	e.subject = subject
	if e.sequence, err = strconv.Atoi(sequence); err != nil || json.Unmarshal(body, &e.Data) != nil {
		return http.StatusBadRequest
	}
	select {
	case r.queue <- e:
		return http.StatusNoContent
	default:
		return http.StatusServiceUnavailable // the queue is full: cloudfn retries later
	}
}

// verify checks the timestamp and the signatures. There are two while a secret is being rotated; one match is enough.
func (r *receiver) verify(h http.Header, body []byte) error {
	stamp := h.Get("Webhook-Timestamp")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > tolerance {
		return errors.New("the timestamp is absent, too old or too new")
	}
	mac := hmac.New(sha256.New, r.key)
	mac.Write([]byte(h.Get("Webhook-Id") + "." + stamp + "." + string(body)))
	for signature := range strings.FieldsSeq(h.Get("Webhook-Signature")) {
		version, text, _ := strings.Cut(signature, ",")
		signed, err := base64.StdEncoding.DecodeString(text)
		if version == "v1" && err == nil && hmac.Equal(signed, mac.Sum(nil)) {
			return nil
		}
	}
	return errors.New("no signature matches")
}

// work processes each event once; here it prints it. Events arrive in order for each subject, but a redelivered one may
// be older than the newest. A program that must not lose this state keeps both maps in its database.
func (r *receiver) work() {
	seen, newest := map[string]bool{}, map[string]int{}
	for e := range r.queue {
		if seen[e.id] {
			continue
		}
		seen[e.id] = true
		late := ""
		if e.sequence < newest[e.subject] {
			late = " late"
		}
		newest[e.subject] = max(newest[e.subject], e.sequence)
		state := cmp.Or(e.Data.State, e.Data.Status) // an instance has a state, an order a status
		fmt.Println(e.kind, e.subject, e.sequence, state+late)
		if r.until != "" && state == r.until && late == "" {
			r.over.Store(true)
		}
	}
}
