package contract_test

import (
	"fmt"
	"strings"
	"testing"
)

// console signs in, and does what the page does.
func (s *story) console(t *testing.T) {
	s.client = s.client.As("") // the console sends the token
	s.ok(t, "openConsole", 302, variant{})
	s.ok(t, "getConsole", 302, variant{})
	for operation, path := range map[string]string{"getConsole": "/console/", "getConsoleFile": ""} {
		tag := s.ok(t, operation, 200, variant{path: path}).Header.Get("Etag")
		s.ok(t, operation, 304, variant{path: path, header: []string{"If-None-Match", tag}})
	}
	s.ok(t, "getConsoleFile", 404, variant{path: "/console/nothing"})

	anothers := []string{"X-Cloudfn-Console", ""} // as another page's request
	signIn := variant{example: "token", set: map[string]any{"token": s.project.Token(t)}}
	s.ok(t, "signIn", 400, variant{example: "token", set: map[string]any{"nonsense": 1}})
	s.ok(t, "signIn", 401, variant{example: "token"})
	s.ok(t, "signIn", 403, variant{example: "token", header: anothers})
	cookie, _, _ := strings.Cut(s.ok(t, "signIn", 201, signIn).Header.Get("Set-Cookie"), ";")
	session := []string{"Cookie", cookie, "X-Cloudfn-User", s.project.UserID + "/" + s.project.ID}
	s.ok(t, "getSession", 401, variant{})
	s.ok(t, "getSession", 200, variant{header: session})
	for _, operation := range []string{"getSession", "signOut"} {
		s.ok(t, operation, 400, variant{header: session, query: []string{"nonsense=1"}})
	}

	s.ok(t, "consoleGet", 200, variant{header: session})
	callback := "/console/api/v1/callbacks"
	create := variant{path: callback, header: session, body: `{"url": "https://receiver.example.com/cloud"}`}
	callback += "/" + s.id(t, "consolePost", 201, create)
	s.ok(t, "consolePatch", 200, variant{path: callback, header: session, body: `{"status": "suspended"}`})
	s.ok(t, "consoleDelete", 204, variant{path: callback, header: session})
	s.ok(t, "consolePost", 401, variant{path: callback + "/test"})
	for _, operation := range []string{"consoleGet", "consolePatch", "consoleDelete"} {
		s.ok(t, operation, 401, variant{path: callback})
	}

	s.ok(t, "listSessionProjects", 200, variant{header: session})
	s.ok(t, "listSessionProjects", 400, variant{header: session, query: []string{"nonsense=1"}})
	s.ok(t, "listSessionProjects", 401, variant{})
	s.ok(t, "listSessionProjects", 403, variant{header: append(anothers, session...)})
	s.ok(t, "switchProject", 400, variant{header: session})
	s.ok(t, "switchProject", 401, variant{})
	s.ok(t, "switchProject", 403, variant{header: append(anothers, session...)})
	own := variant{header: session, set: map[string]any{"project_id": s.project.ID}}
	session[1], _, _ = strings.Cut(s.ok(t, "switchProject", 200, own).Header.Get("Set-Cookie"), ";")
	s.ok(t, "signOut", 401, variant{query: []string{"all=true"}})
	s.ok(t, "signOut", 403, variant{header: append(anothers, session...)})
	s.ok(t, "signOut", 204, variant{header: session})
}

// consoleDown requests a session that no one can look up.
func (e *examples) consoleDown(t *testing.T, status int, a variant) {
	t.Helper()
	a.header = []string{"Cookie", fmt.Sprintf("cloudfn_session=%043d", 0)}
	for _, operation := range []string{"getSession", "listSessionProjects", "switchProject", "signOut"} {
		e.send(t, operation, status, a)
	}
	a.path = "/console/api/v1/callbacks/" + exampleCallback
	for _, operation := range []string{"consoleGet", "consolePatch", "consoleDelete"} {
		e.send(t, operation, status, a)
	}
	a.path = "/console/api/v1/callbacks"
	e.send(t, "consolePost", status, a)
}
