package run

import (
	"context"
	"slices"

	"github.com/cloudfn/cloudfn/shared/httpx"
)

// Routes lists the routes of all functions, and those that every process serves. They describe themselves, and serve nothing.
func Routes(ctx context.Context) ([]httpx.Route, error) {
	var list []httpx.Route
	for _, f := range registry {
		if f.routes == nil {
			continue
		}
		routes, err := f.routes(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, routes...)
	}
	return append(list, (&Process{}).common()...), nil
}

// Patterns lists what the daemon serves, each as http.ServeMux takes it: for the description of the API and its test.
func Patterns(ctx context.Context) ([]string, error) {
	routes, err := Routes(ctx)
	if err != nil {
		return nil, err
	}
	patterns := []string{"GET /healthz"}
	for _, f := range registry {
		if f.routes == nil {
			patterns = append(patterns, "POST /events/"+f.name)
		}
	}
	for _, r := range routes {
		patterns = append(patterns, r.Pattern)
	}
	slices.Sort(patterns)
	return patterns, nil
}
