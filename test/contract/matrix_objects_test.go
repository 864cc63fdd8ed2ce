package contract_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// objects are names and ids by those of the examples.
type objects map[string]string

const (
	exampleTemplate = "{flavor}"
	exampleManaged  = "{managed}"
	sentRequest     = "{sent}"
	exampleNode     = "compute-1.example.com"
)

func newObjects() objects {
	o := objects{exampleNode: exampleNode}
	for _, id := range []string{
		exampleOrder, exampleInstance, exampleServer, exampleSecond, exampleConnection, exampleCallback,
		exampleDelivery, exampleDeployment, exampleAction, exampleRequest, exampleLease, exampleTemplate,
		exampleManaged, sentRequest,
	} {
		o[id] = uuid.NewString()
	}
	return o
}

var absent = newObjects()

// replacer puts the names in the place of those of an operation's examples. A request for a connection is received,
// or, for who withdraws it, sent.
func (o objects) replacer(op operation) *strings.Replacer {
	pairs := []string{}
	for example, name := range o {
		if example == exampleRequest && op.OperationID == "withdrawConnectionRequest" {
			name = o[sentRequest]
		}
		pairs = append(pairs, example, name)
	}
	return strings.NewReplacer(pairs...)
}

// path is the operation's path with the names that are no ids.
func (o objects) path(op operation) string {
	name := o[exampleManaged]
	if strings.HasPrefix(op.path, "/v1/flavors") {
		name = o[exampleTemplate]
	} else if strings.HasPrefix(op.path, "/v1/nodes") {
		name = o[exampleNode]
	}
	return strings.NewReplacer("{name}", name, "{number}", "1").Replace(op.path)
}

var requestID = regexp.MustCompile(`req-[0-9a-f-]{36}`)

// unnamed is an answer without the names.
func (o objects) unnamed(a testkit.Answer) string {
	text := fmt.Sprint(a.Status, " ", requestID.ReplaceAllString(string(a.Body), ""))
	for example, name := range o {
		text = strings.ReplaceAll(text, name, example)
	}
	return text
}

// insert stores one object of each kind in a project.
func (m *matrix) insert(t *testing.T, project string) objects {
	t.Helper()
	o := newObjects()
	names := strings.NewReplacer(
		"$project", project, "$third", thirdProject, "$user", matrixUser, "$order", o[exampleOrder],
		"$instance", o[exampleInstance], "$server", o[exampleServer], "$connection", o[exampleConnection],
		"$callback", o[exampleCallback], "$delivery", o[exampleDelivery], "$action", o[exampleAction],
		"$received", o[exampleRequest], "$sent", o[sentRequest], "$lease", o[exampleLease],
		"$template", o[exampleTemplate], "$managed", o[exampleManaged],
	)
	if _, err := m.pool.Exec(context.Background(), names.Replace(matrixRows)); err != nil {
		t.Fatal(err)
	}
	return o
}

const matrixRows = `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status)
values ('$project', '$order', 'default', '$user', '', '{}', 'done');
insert into connections (project_id, id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status,
                         expires_at, checked_at, next_check_at, flavors)
values ('$project', '$connection', 'default', '$user', 'trust', 't',
        '{"user_id": "$user", "user_name": "ann", "project_id": "$project", "project_name": "p", "roles": ["member"]}',
        '{allocate,connect,start,stop,reboot,shelve,snapshot,deploy,deallocate}', '{}', 'active',
        now() + interval '1 day', now(), now() + interval '1 day', '[{"id": "1", "name": "m1.small", "vcpus": 1, "ram_mb": 512}]');
insert into instances (project_id, id, position, name, state, raw_status, origin, server_id, connection_id)
values ('$project', '$instance', 0, 'x', 'active', 'ACTIVE', 'launched', '$server', '$connection');
insert into events (project_id, subject, seq, type, at, data) values ('$project', '$instance', 1, '` + domain.InstanceEvent + `', now(), '{}');
insert into callbacks (project_id, id, user_id, url, events, status, secret)
values ('$project', '$callback', '$user', 'https://receiver.example.com', '{` + domain.OrderEvent + `}', 'verified', 's');
insert into deliveries (project_id, id, callback_id, stream, seq, event_project, subject, event_seq, status, created_at)
values ('$project', '$delivery', '$callback', 's', 1, '$project', '$instance', 1, 'dead', now());
insert into actions (project_id, id, connection_id, instance_id, user_id, verb)
values ('$project', '$action', '$connection', '$instance', '$user', 'stop');
insert into connection_requests (id, project_id, requester_project_id, requester_user_id, grantee, why, actions, duration,
                                 expires_at)
values ('$received', '$project', '$third', 'u', 'user', 'x', '{start}', '1 hour', now() + interval '1 hour'),
       ('$sent', '$third', '$project', '$user', 'user', 'x', '{start}', '1 hour', now() + interval '1 hour');
insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end, connection_id)
values ('$project', '$lease', 'default', '$user', 'x', 'error', now(), now() + interval '2 hours', 'shelve', '$connection');
insert into flavors (project_id, name, id, domain_id, user_id, kind, provider, spec)
values ('$project', '$template', gen_random_uuid(), 'default', '$user', 'VirtualMachineDeployment', 'nova', '{}');
insert into managed_projects (project_id, domain_id, due_at) values ('$project', 'default', 'infinity')
on conflict do nothing;
with m as (insert into managed (project_id, id, kind, name, user_id, provider, repair, max_revisions, revision, request,
                                status)
           values ('$project', gen_random_uuid(), 'VirtualMachineDeployment', '$managed', '$user', 'nova', 'manual', 10, 1,
                   'create', 'pending')
           returning project_id, id)
insert into managed_revisions (project_id, managed_id, number, spec, user_id)
select project_id, id, 1, '{"count": 0}', 'u' from m;
insert into nodes (name, pool) values ('compute-1.example.com', 'reservable') on conflict do nothing`
