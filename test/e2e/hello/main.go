// Command hello is the least that a Knative Service can be: what our cold starts are measured beside, and what
// receives events in the tests. It shows every CloudEvent that it gets as one line.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

func main() {
	http.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "hello") })
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		event, err := cloudevents.NewEventFromHTTPRequest(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		line, _ := event.MarshalJSON()
		fmt.Printf("event %s\n", line)
	})
	server := &http.Server{Addr: ":" + os.Getenv("PORT"), ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
