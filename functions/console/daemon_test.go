package console

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// daemon is a process with all functions, and its database.
type daemon struct {
	*testkit.Process
	database string
}

func startDaemon(t *testing.T) daemon {
	t.Helper()
	database := testkit.Database(t)
	env := testkit.Env(t, database, map[string]string{"OS_CLOUD": "demo", "STATS_BACKFILL": "1h"})
	return daemon{testkit.Spawn(t, env), database}
}

// signIn returns a browser that is signed in as the project's member.
func (d daemon) signIn(t *testing.T, p *testkit.Project) *browser {
	t.Helper()
	return signInTo(t, d.Client, password(p, ""))
}

// listed returns how many requests for the project's servers its member has sent.
func (d daemon) listed(t *testing.T, p *testkit.Project) int {
	t.Helper()
	return testkit.Scalar[int](t, testkit.Pool(t, d.database),
		"select count(*)::int from requests where function = 'servers' and path = '/v1/servers' and user_id = $1 and "+
			"project_id = $2", p.UserID, p.ID)
}

// TestProxy sends requests through the console to one daemon.
func TestProxy(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	for name, test := range map[string]func(*testing.T, daemon){
		"AnswersAsTheAPI": proxyAnswersAsTheAPI, "ReachesOnlyTheAPI": proxyReachesOnlyTheAPI,
		"RejectsChangedUser": proxyRejectsChangedUser, "Bodies": proxyBodies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, d)
		})
	}
}
