package main

import (
	"cmp"
	"html/template"
	"maps"
	"strings"

	"go.yaml.in/yaml/v3"
)

// shown are the examples of an answer that is no problem.
func shown(status string, response node) []example {
	var list []example
	for kind, media := range response.get("content").pairs() {
		if kind != "application/json" && kind != "application/octet-stream" {
			continue
		}
		for _, e := range examplesOf(media) {
			e.Name = strings.TrimSuffix(status+" · "+e.Name, " · ")
			list = append(list, e)
		}
	}
	return list
}

func examplesOf(media node) []example {
	var list []example
	if one := media.get("example"); one.there() {
		list = append(list, example{Text: sent(one.Node)})
	}
	for _, e := range media.get("examples").pairs() {
		list = append(list, example{Name: e.text("summary"), Text: sent(e.get("value").Node)})
	}
	return list
}

// sent is an example as it is sent: JSON, or text as it is.
func sent(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
		return n.Value
	}
	return toJSON(n)
}

// bodies are the examples of a request's body.
func bodies(op node) []example {
	return examplesOf(op.get("requestBody").get("content").get("application/json"))
}

// curls are commands that send the operation's examples.
func curls(o operation, op node, params []node) []example {
	path, query, headers := o.Path, []string{}, authHeaders(o)
	for _, p := range params {
		value := exampleValue(p)
		switch {
		case p.text("in") == "path":
			path = strings.ReplaceAll(path, "{"+p.text("name")+"}", value)
		case p.text("in") == "query" && p.required():
			query = append(query, p.text("name")+"="+value)
		case p.text("in") == "header" && p.required():
			headers = append(headers, p.text("name")+": "+value)
		}
	}
	if len(query) > 0 {
		path += "?" + strings.Join(query, "&")
	}
	list := []example{}
	for _, e := range bodies(op) {
		list = append(list, example{e.Name, command(o.Method, path, append(headers, "Content-Type: application/json"), e.Text)})
	}
	if len(list) == 0 || strings.HasPrefix(o.Path, "/events/") {
		return []example{{Text: command(o.Method, path, headers, "")}}
	}
	return list
}

func exampleValue(p node) string {
	e := p.get("example")
	if words := e.words(); len(words) > 0 {
		return strings.Join(words, ",")
	}
	if !e.there() {
		return ""
	}
	return e.Value
}

func authHeaders(o operation) []string {
	switch o.Auth {
	case "a Keystone token":
		return []string{"X-Auth-Token: $TOKEN"}
	case "the token of the deployment":
		return []string{"Authorization: Bearer $DEPLOY_TOKEN"}
	case "the key of events":
		return []string{"Ce-Cloudfnkey: $EVENT_KEY"}
	case "a session of the console":
		return []string{"Cookie: cloudfn_session=$SESSION"}
	}
	return nil
}

func command(method, path string, headers []string, body string) string {
	first := "curl"
	if method != "GET" && (method != "POST" || body == "") {
		first += " -X " + method
	}
	lines := []string{first + ` "$URL` + path + `"`}
	for _, h := range headers {
		lines = append(lines, `-H "`+h+`"`)
	}
	if body != "" {
		lines = append(lines, "-d '"+strings.ReplaceAll(body, "'", `'\''`)+"'")
	}
	return strings.Join(lines, " \\\n  ")
}

// problem is a code of errors.
type problem struct {
	Code, Status string
	When, Do     template.HTML
}

// advice is what whoever gets a code does about it.
var advice = map[string]string{
	"invalid":            "Mend what `errors` names. The same request fails again.",
	"unauthenticated":    "Get another token from Keystone, scoped to a project. `WWW-Authenticate` says where.",
	"forbidden":          "Use a token with another role or project, or ask for the permission. The same request fails again.",
	"quota_exceeded":     "Ask for less, free something, or have the quota raised.",
	"suspended":          "Wait until a user of the project that has delegated resumes the connection.",
	"delegation_lost":    "Whoever has delegated does it again: what Keystone had of it is gone.",
	"not_found":          "Look at the id and at the project of the token.",
	"method_not_allowed": "`Allow` names the methods that the path takes.",
	"not_acceptable":     "Accept one of the content types in `errors`.",
	"conflict":           "Look at how it is now. `errors` may list what to choose from, and what the state allows.",
	"precondition":       "Read it anew, look at what has changed, and send the change with its new `ETag` in `If-Match`.",
	"too_large":          "Send less.",
	"unsupported_media":  "Send JSON, and say so in `Content-Type`.",
	"unprocessable":      "Ask for something that the cloud has.",
	"rate_limited":       "Wait for as long as `Retry-After` says, then send the same again.",
	"client_gone":        "Nobody gets this: it stands in the request log.",
	"internal":           "Report it with the request id.",
	"unsupported":        "The cloud cannot do this, or the operator has not set it up.",
	"bad_gateway":        "Send the same again; if that does not help, tell the operator of the cloud.",
	"unavailable":        "Wait for as long as `Retry-After` says, then send the same again, with the same `id` if it has one.",
	"timeout":            "Send the same again, with the same `id` if it has one: it may have been done.",
}

// special is when codes come that share their status with another.
var special = map[string]string{
	"quota_exceeded":  "A quota of the project, or of the connection, does not allow it.",
	"suspended":       "A user of the project that has delegated has suspended the connection.",
	"delegation_lost": "Keystone does not accept any more what a connection was delegated.",
	"client_gone":     "The client hung up before the answer.",
}

// problems are all codes, with the status that each comes with.
func problems(doc document) []problem {
	statuses, when := map[string]string{"client_gone": "499"}, maps.Clone(special)
	for _, response := range doc.at("components", "responses").pairs() {
		s := response.get("content").get("application/problem+json").get("schema")
		for _, part := range s.get("allOf").items() {
			status := part.get("properties").get("status").text("const")
			for _, code := range codes(s) {
				statuses[code] = cmp.Or(statuses[code], status)
				when[code] = cmp.Or(when[code], response.text("description"))
			}
		}
	}
	var list []problem
	for _, code := range doc.at("components", "schemas", "Code", "enum").words() {
		list = append(list, problem{code, statuses[code], markdown(when[code]), markdown(advice[code])})
	}
	return list
}
