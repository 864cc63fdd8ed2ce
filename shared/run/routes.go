package run

import (
	"context"
	"slices"
)

// Patterns lists what the daemon serves, each as http.ServeMux takes it: for the description of the API and its test.
func Patterns(ctx context.Context) ([]string, error) {
	patterns := []string{"GET /healthz"}
	for _, f := range registry {
		if f.routes == nil {
			patterns = append(patterns, "POST /events/"+f.name)
			continue
		}
		routes, err := f.routes(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			patterns = append(patterns, r.Pattern)
		}
	}
	for _, r := range (&Process{}).common() {
		patterns = append(patterns, r.Pattern)
	}
	slices.Sort(patterns)
	return patterns, nil
}
