package main

import (
	"context"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func reservableHost(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 0, "reservable-host")
	ts.Setenv("HOST", testkit.ReservableHosts(tb(ts))[0])
}

func (d daemon) failedLease(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "failed-lease ID")
	_, err := testkit.Connect(tb(ts), d.database).Exec(context.Background(),
		`update leases set status = 'error', problem = '{"code": "conflict", "detail": "no room"}', due_at = null,
		 version = version + 1 where project_id = $1 and id = $2`, project(ts).ID, args[0])
	ts.Check(err)
}
