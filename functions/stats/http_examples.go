package stats

import (
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const (
	statsText = "Exactly `hours` entries without a gap, the oldest first. The newest is the last full hour by the database's\n" +
		"clock. `Accept` chooses JSON (the default), an SVG chart or an HTML page.\n" +
		"\n" +
		"An hour that is not known is `missing` and null, never zero. A sum over several projects is missing as soon\n" +
		"as one of them is. Servers whose state at the hour Nova's log does not decide are `uncertain`: they are in none of\n" +
		"the other numbers, and become part of them when the log is whole, mostly within a minute or two.\n"
	requestsText = "One page of the request log, the newest first. A row belongs to the project of the token that made the\n" +
		"request. Requests whose token was refused, and those that need none, belong to no project: only\n" +
		"`scope=cloud` shows them. This request's own row is written after its answer is made, so it is not among them.\n" +
		"\n" +
		"`acted_through` shows instead what was done through connections of the project, whoever's token it was done with: those rows are in\n" +
		"the log of whoever made the request, too.\n" +
		"\n" +
		"`Accept: text/csv` and `Accept: application/x-ndjson` give an export: all rows that the other parameters select, and not a page of\n" +
		"them, as they are read. `limit` is then the most rows in all. An export may take as long as a request may (`REQUEST_TIMEOUT`, 60 s by\n" +
		"default). One that cannot be finished breaks off, so that no client takes a part for the whole; go on with the last id as the `marker`. In\n" +
		"CSV an apostrophe is put before what a spreadsheet would take for a formula.\n"
	scopeText = "Whose rows. Without it: the project, when the token is scoped to one or `project_id` is given; else the domain\n" +
		"that the token is scoped to; else the cloud.\n" +
		"\n" +
		"- `project`: the token's own project, or the one of `project_id`.\n" +
		"- `domain`: every project of a domain. A token scoped to the domain with the role admin, manager, member or\n" +
		"  reader, or a project's admin for the domain of that project.\n" +
		"- `cloud`: every project. The admin role in any project, or admin or reader of the system.\n"
	projectText = "Another project's id, for `scope=project` only. Needs a token scoped to its domain, or one that is entitled to\n" +
		"`scope=cloud`. A project that does not exist, or is of another domain, looks like one without rows.\n"
	actedText = "Only requests that acted through this connection of the project, or `any` of them; also those that it refused. The `remote` of a row of\n" +
		"another project is empty.\n"
)

func hourAt(h, running, total int, by map[string]int, uncertain int, source domain.Source) domain.HourStat {
	stat := domain.HourStat{Hour: time.Date(2026, 1, 2, h, 0, 0, 0, time.UTC), ByStatus: by, Uncertain: uncertain, Source: source}
	if source != domain.Missing {
		stat.Running, stat.Total = &running, &total
	}
	return stat
}

var statsExamples = []httpx.Example{
	httpx.NewExample("project", "Three hours of the token's project", Stats{
		Scope: domain.ScopeProject, ProjectID: "43f6e73ab2484cdd87b789e3e289627c",
		From: time.Date(2026, 1, 2, 1, 0, 0, 0, time.UTC), To: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
		Hours: []domain.HourStat{
			hourAt(1, 0, 0, map[string]int{}, 0, domain.Missing),
			hourAt(2, 2, 3, map[string]int{"ACTIVE": 2, "SHUTOFF": 1}, 0, domain.Rebuilt),
			hourAt(3, 3, 3, map[string]int{"ACTIVE": 3}, 1, domain.Sampled),
		},
	}),
	httpx.TextExample("image/svg+xml", `<svg xmlns="http://www.w3.org/2000/svg" role="img"><title>Running servers per hour</title></svg>`),
	httpx.TextExample("text/html", `<!DOCTYPE html><html lang="en"><title>Running servers per hour</title></html>`),
}

var (
	nextPage = "/v1/requests?limit=2&marker=019b7c5e-7bd4-703e-8325-28b622c8c15f"
	failed   = Request{
		ID: uuid.MustParse("019b7c5e-7be0-7a25-b227-364ef6263438"), At: time.Date(2026, 1, 2, 3, 4, 7, 312839000, time.UTC),
		Function: "stats", Method: "GET", Path: "/v1/stats", Status: 403, MS: 1, UserID: "fe72559b26734b36b94e5ea3d594acc4",
		ProjectID: "43f6e73ab2484cdd87b789e3e289627c", DomainID: "default", RequestID: "req-2a42a10b-2030-4fa1-9c9f-be3b8b332bd8",
		Remote: "192.0.2.7", Code: "forbidden",
	}
	served = Request{
		ID: uuid.MustParse("019b7c5e-7bd4-703e-8325-28b622c8c15f"), At: time.Date(2026, 1, 2, 3, 4, 6, 300276000, time.UTC),
		Function: "launch", Method: "POST", Path: "/v1/launch", Status: 202, MS: 912, UserID: "fe72559b26734b36b94e5ea3d594acc4",
		ProjectID: "43f6e73ab2484cdd87b789e3e289627c", DomainID: "default", RequestID: "req-b6543009-06c8-49cb-9b45-3621e6445243",
		Remote: "192.0.2.7",
	}
)

// The texts of an export are its columns, and one row.
var requestExamples = []httpx.Example{
	httpx.NewExample("page", "A rejection and a success", RequestPage{[]Request{failed, served}, &nextPage}),
	httpx.TextExample(csvType, "id,at,function,method,path,status,ms,user_id,user_name,project_id,domain_id,request_id,remote,code,"+
		"connection_id,acted_in\n019b7c5e-7bd4-703e-8325-28b622c8c15f,2026-01-02T03:04:06.300276Z,launch,POST,/v1/launch,202,12,"+
		"fe72559b26734b36b94e5ea3d594acc4,jane,0b1f9d6c8e5a4c0f8a7b3d2e1c4f5a69,default,req-b6543009-06c8-49cb-9b45-3621e6445243,,,"+
		"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13,43f6e73ab2484cdd87b789e3e289627c\n"),
	httpx.TextExample(ndjsonType, `{"id":"019b7c5e-7bd4-703e-8325-28b622c8c15f","at":"2026-01-02T03:04:06.300276Z",`+
		`"function":"launch","method":"POST","path":"/v1/launch","status":202,"ms":912,`+
		`"user_id":"fe72559b26734b36b94e5ea3d594acc4","project_id":"43f6e73ab2484cdd87b789e3e289627c","domain_id":"default",`+
		`"request_id":"req-b6543009-06c8-49cb-9b45-3621e6445243","remote":"192.0.2.7"}`),
}
