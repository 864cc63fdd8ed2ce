package connections

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestLongEndedRequestsCannotBeGranted covers declined, withdrawn and expired requests. Both projects see the end.
func TestLongEndedRequestsCannotBeGranted(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	r := p.ask(t, "")
	if a, _ := p.decide(t, r.ID, "decline", `{"reason": "not at night"}`); a.Status != 200 ||
		!strings.Contains(string(a.Body), `"declined"`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if got := p.status(t, p.program, r.ID); got.Reason != "not at night" || got.DecidedBy != "" {
		t.Errorf("the program sees %+v", got)
	}
	withdrawn := p.ask(t, "")
	for range 2 {
		if a := p.program.Do(t, "DELETE", requestsPath+"/"+withdrawn.ID.String(), ""); a.Status != 204 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	late := p.ask(t, "")
	if _, err := p.conn.Exec(t.Context(),
		"update connection_requests set expires_at = clock_timestamp() where status = 'pending'"); err != nil {
		t.Fatal(err)
	}
	for id, word := range map[uuid.UUID]string{r.ID: "declined", withdrawn.ID: "withdrawn", late.ID: "expired"} {
		if a, _ := p.decide(t, id, "grant", `{}`); a.Status != 409 || !strings.Contains(string(a.Body), word) {
			t.Errorf("%s: %d %s", word, a.Status, a.Body)
		}
	}
	if left := p.owners.Trusts(t); len(left) != 0 {
		t.Errorf("Keystone has %v", left)
	}
}

// TestCreateRequestRejectsInvalidFields names the field.
func TestCreateRequestRejectsInvalidFields(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	for more, field := range map[string]string{
		`, "project_id": "alt"`:                     "", // a key twice
		`, "for": "domain"`:                         "for",
		`, "expires_at": "` + soon(time.Hour) + `"`: "duration",
		`, "fly": 1`:                                "fly",
	} {
		if a := p.program.Post(t, requestsPath, p.asked(more)); a.Status != 400 || field != "" &&
			problemField(t, a) != field {
			t.Errorf("%s: %d %s", more, a.Status, a.Body)
		}
	}
	for from, to := range map[string]string{
		`"` + p.owners.ID + `"`:      `"alt"`,
		`we build at night`:          ` `,
		`build`:                      `\u202ebuild`,
		`at night`:                   strings.Repeat("x", 1000),
		`nightly`:                    `a\nb`,
		`"deallocate"`:               `"fly"`,
		`"instances": 3`:             `"instances": -3`,
		`"48h"`:                      `"8785h"`,
		`"duration": "48h"`:          `"expires_at": null`,
		`"duration": "48h" `:         ``,
		`["allocate", "deallocate"]`: `[]`,
	} {
		body := strings.Replace(p.asked(" "), from, to, 1)
		if a := p.program.Post(t, requestsPath, body); a.Status != 400 {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	reader := p.program.As(p.programs.ReaderToken(t))
	if a := reader.Post(t, requestsPath, p.asked("")); a.Status != 403 {
		t.Errorf("a token that only reads: %d %s", a.Status, a.Body)
	}
	for range domain.MaxRequestsFrom {
		p.ask(t, "")
	}
	if a := p.program.Post(t, requestsPath, p.asked("")); a.Status != 409 ||
		!strings.Contains(string(a.Body), "20 requests of your project") {
		t.Errorf("one too many: %d %s", a.Status, a.Body)
	}
	var page ConnectionRequestPage
	p.program.Get(t, requestsPath+"?limit=5").JSON(t, &page)
	if len(page.Requests) != 5 || page.Next == nil {
		t.Errorf("a page of %d, next %v", len(page.Requests), page.Next)
	}
}
