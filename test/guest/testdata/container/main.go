// Command container is what the guests of the test run: it shows its arguments and its environment over HTTP.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	port := os.Getenv("PORT")
	fmt.Printf("container: serves port %s with %q\n", port, os.Args[1:])
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, strings.Join(os.Args[1:], " "))
		fmt.Fprintln(w, strings.Join(os.Environ(), "\n"))
	})
	http.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, r.URL.Query().Get("path"))
	})
	http.HandleFunc("/end", func(_ http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		os.Exit(status)
	})
	fmt.Println(http.ListenAndServe(":"+port, nil))
	os.Exit(1)
}
