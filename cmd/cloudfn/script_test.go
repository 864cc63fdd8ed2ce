package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMain makes this program two commands of the scripts: what runs there is a process of its own. More scripts run
// concurrently than there are processors: they mostly wait for Nova.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	testscript.Main(cleaned{m}, map[string]func(){"cloudfn": main, "kn-cloud": main})
}

// cleaned removes the daemon's binary after the tests.
type cleaned struct{ *testing.M }

func (c cleaned) Run() int {
	defer testkit.RemoveBinary()
	return c.M.Run()
}

// TestScripts runs the scripts of the main nouns, in testdata/script, against one real daemon: each script has a
// project of its own, and its member's login in the environment. One of them alone: go test ./cmd/cloudfn -run
// 'TestScripts/script/launch$'. Besides testscript's own there are these commands:
//
//	exits CODE COMMAND...               run it; it must end with the exit code
//	eventually LIMIT PATTERN COMMAND... run it until it is done and its stdout matches
//	capture NAME [PATTERN]              keep the last stdout, or the pattern's first group in it, as $NAME
//	boot NAME [N]                       make servers by Nova itself; the first one's id is $SERVER, all are $SERVERS
//	image NAME                          make an image that servers can boot from
//	stat-hours N RUNNING [UNCERTAIN]    write the last N hours' counts of the project, each as RUNNING; from here on
//	                                    the script calls a daemon whose clock is far from the full hour
//	user-data FILE                      Nova has the file as the user_data of each server of the project
//	tick FUNCTION                       send the daemon the event that a PingSource would
//	mode PERM FILE                      the file has these permissions
//	no-secrets FILE|stdout|stderr       it shows no secret that a test knows of
//	receiver NAME                       start a receiver of events that consents; its URL is $NAME
//	interrupt PATTERN COMMAND...        press Ctrl-C when its stderr matches; it must end with 130
//	breaks NAME N                       a way to the daemon that breaks off N times; its URL is $NAME
//	holds NAME METHOD                   a way to the daemon that holds the answers to METHOD until the next interrupt,
//	                                    or until the client has disconnected; its URL is $NAME
//	weakens NAME                        a way to the daemon that compresses answers, and so makes ETags weak, as nginx
//	                                    does; its URL is $NAME
//	counted, called N                   count the calls to Keystone; there were N since
//	credential                          make an application credential: $CREDENTIAL_ID, _NAME, _SECRET
//	expand FILE...                      put environment variables into files
//	kept WHAT                           do something to the token that is kept
//	routed NAME                         make a network that a router connects to the external one
//	huge                                make $HUGE, a flavor for which there is no host
//	examples FILE                       write the commands of README.md to a file
//	forge URL                           post an event that is not signed with the right secret
//	admin                               make the project's member an admin of the cloud, before its first login
//	reservable-host                     wait for the hosts of the sandbox that can be reserved; one of them is $HOST
//	failed-lease ID                     write a lease of the project as one whose start has failed
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, newDaemon(t), "script")
}

// TestLongScripts runs those of testdata/long, too. Together they call every operation.
func TestLongScripts(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	if !runScripts(t, d, "script", "long") {
		t.Fatal("not all scripts came to their end")
	}
	d.allCalled(t)
}

// runScripts runs the scripts in folders of testdata, and reports whether all passed.
func runScripts(t *testing.T, d daemon, folders ...string) bool {
	t.Helper()
	var files []string
	for _, folder := range folders {
		found, err := filepath.Glob(filepath.Join("testdata", folder, "*.txtar"))
		if err != nil || len(found) == 0 {
			t.Fatalf("testdata/%s: %v, %v", folder, found, err)
		}
		files = append(files, found...)
	}
	return t.Run("script", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Files: files, Setup: d.setup, RequireExplicitExec: true, RequireUniqueNames: true,
			Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"exits": exits, "eventually": eventually, "capture": capture, "boot": boot, "image": image, "snapshots": snapshots, "user-data": userData,
				"stat-hours": d.statHours, "tick": d.tick, "mode": mode, "no-secrets": noSecrets, "receiver": receiver,
				"forge": forge, "interrupt": interrupt, "admin": admin, "reservable-host": reservableHost,
				"failed-lease": d.failedLease,
				"breaks":       d.breaks, "holds": d.holds, "weakens": d.weakens, "counted": counted, "called": called,
				"credential": credential, "expand": expand, "kept": kept, "routed": routed, "huge": huge, "examples": examples,
			},
		})
	})
}

// daemon is the cloudfn that the scripts call.
type daemon struct {
	*testkit.Process
	database string
	midHour  func() daemon // another one, whose clock is at 20 minutes past the hour when it starts
}

func newDaemon(t *testing.T) daemon {
	t.Helper()
	database := testkit.Database(t)
	countNothing(t, database)
	d := spawnDaemon(t, database)
	d.midHour = sync.OnceValue(func() daemon {
		database := testkit.Database(t)
		testkit.SetClock(t, database, time.Now().Truncate(time.Hour).Add(20*time.Minute))
		countNothing(t, database)
		return spawnDaemon(t, database)
	})
	return d
}

func spawnDaemon(t *testing.T, database string) daemon {
	t.Helper()
	return daemon{Process: testkit.Spawn(t, testkit.Env(t, database, map[string]string{
		"STATS_BACKFILL": "1h",
	})), database: database}
}

// project is the key of a script's project among its values, and test that of its testing.TB.
type (
	projectKey struct{}
	testKey    struct{}
)

// setup gives a script its project, and a login as its member.
func (d daemon) setup(env *testscript.Env) error {
	t := env.T().(testing.TB)
	p := testkit.NewProject(t)
	env.Values[projectKey{}], env.Values[testKey{}] = p, t
	login, f := p.Environment(), testkit.Sandbox(t)
	for _, name := range slices.Sorted(maps.Keys(login)) {
		env.Setenv(name, login[name])
	}
	env.Setenv("HOME", filepath.Join(env.WorkDir, ".home"))
	env.Setenv("CLOUDFN_URL", d.URL)
	env.Setenv("PROJECT_ID", p.ID)
	env.Setenv("USER_ID", p.UserID)
	env.Setenv("FLAVOR", f.Flavor)
	env.Setenv("IMAGE", f.Image)
	env.Setenv("RETIRED", f.Retired)
	env.Setenv("NETWORK", f.Network)
	env.Setenv("TEN", "10m") // as long as anything may take on a busy machine
	return os.MkdirAll(env.Getenv("HOME"), 0o700)
}

func tb(ts *testscript.TestScript) testing.TB {
	return ts.Value(testKey{}).(testing.TB)
}

func project(ts *testscript.TestScript) *testkit.Project {
	return ts.Value(projectKey{}).(*testkit.Project)
}

func needs(ts *testscript.TestScript, neg bool, args []string, least int, usage string) {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 2, "exits CODE COMMAND...")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		code = exitCode(ts, err)
	}
	if code != want {
		ts.Fatalf("the exit code is %d, not %d", code, want)
	}
}

// exitCode is that of a process that has ended.
func exitCode(ts *testscript.TestScript, err error) int {
	ended, ok := err.(interface{ ExitCode() int })
	if !ok {
		ts.Fatalf("%v", err)
	}
	return ended.ExitCode()
}

func eventually(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 3, "eventually LIMIT PATTERN COMMAND...")
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	for end := time.Now().Add(limit); ; time.Sleep(300 * time.Millisecond) {
		err := ts.Exec(args[2], args[3:]...)
		if err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("not within %s: %s (%v)", limit, args[1], err)
		}
	}
}

func capture(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "capture NAME [PATTERN]")
	text := strings.TrimSpace(ts.ReadFile("stdout"))
	if len(args) > 1 {
		found := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(text)
		if len(found) < 2 {
			ts.Fatalf("stdout has no %s", args[1])
		}
		text = found[1]
	}
	ts.Setenv(args[0], text)
}

func boot(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "boot NAME [N]")
	n := 1
	if len(args) > 1 {
		var err error
		n, err = strconv.Atoi(args[1])
		ts.Check(err)
	}
	var ids []string
	for _, s := range project(ts).BootWithAddress(tb(ts), args[0], n) {
		ids = append(ids, s.ID)
	}
	ts.Setenv("SERVER", ids[0])
	ts.Setenv("SERVERS", strings.Join(ids, " "))
}

func image(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "image NAME")
	project(ts).MakeImage(tb(ts), args[0], nil)
}

// snapshots deletes the project's images when the script has ended.
func snapshots(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 0, "snapshots")
	p := project(ts)
	ts.Defer(func() { p.DeleteImages(tb(ts)) })
}

func (d daemon) tick(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "tick FUNCTION")
	if a := d.Tick(tb(ts), args[0]); a.Status >= http.StatusMultipleChoices {
		ts.Fatalf("the tick of %s: %d %s", args[0], a.Status, a.Body)
	}
}

func mode(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 2, "mode PERM FILE...")
	for _, file := range args[1:] {
		info, err := os.Stat(ts.MkAbs(file))
		ts.Check(err)
		if perm := fmt.Sprintf("%04o", info.Mode().Perm()); perm != args[0] {
			ts.Fatalf("%s has %s, not %s", file, perm, args[0])
		}
	}
}

func noSecrets(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "no-secrets FILE...")
	for _, file := range args {
		testkit.NoSecretsIn(tb(ts), file, []byte(ts.ReadFile(file)))
	}
}

func routed(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "routed NAME")
	project(ts).RoutedNetwork(tb(ts), args[0], "10.54.0.0/24")
}

func huge(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 0, "huge")
	ts.Setenv("HUGE", project(ts).TooLargeFlavor(tb(ts)))
}

// TestExamplesNameANetwork: the sandbox of `make run` has several networks, as most clouds have.
func TestExamplesNameANetwork(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(text)))
	each(root(), func(c *cobra.Command) { lines = append(lines, strings.Split(c.Example, "\n")...) })
	n := 0
	for _, line := range lines {
		if _, launch, ok := strings.Cut(line, "cloudfn launch "); ok && strings.Contains(launch, "--image ") {
			if n++; !strings.Contains(launch, "--network ") {
				t.Errorf("no --network: %s", line)
			}
		}
	}
	if n < 6 {
		t.Errorf("there are only %d launches", n)
	}
}

// TestTimesOfHelp: the times and durations that the help of a flag shows are ones that the flag takes.
func TestTimesOfHelp(t *testing.T) {
	t.Parallel()
	times := regexp.MustCompile(`(?:\bin )?\b(?:(?:\d+[mhdw])+|P\d+[DM]|\d{4}-\d\d-\d\dT[\d:]+Z)`)
	n := 0
	each(root(), func(c *cobra.Command) {
		c.Flags().VisitAll(func(flag *pflag.Flag) {
			for _, text := range times.FindAllString(flag.Usage, -1) {
				n++
				if err := flag.Value.Set(text); err != nil {
					t.Errorf("%s --%s %q: %v", c.CommandPath(), flag.Name, text, err)
				}
			}
		})
	})
	if n < 30 {
		t.Errorf("there are only %d times", n)
	}
}

// TestReadmeHasCommands: the table of commands names each.
func TestReadmeHasCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(text), "\n## Examples")
	rows := func(noun string) string { // those with a command that begins with it
		var found strings.Builder
		for row := range strings.Lines(table) {
			if strings.HasPrefix(row, "| `") && strings.Contains(row, "`"+noun) {
				found.WriteString(row)
			}
		}
		return found.String()
	}
	each(root(), func(c *cobra.Command) {
		noun := "" // none for the commands of the program itself
		if words := strings.Fields(c.CommandPath()); len(words) > 2 {
			noun = words[1]
		}
		word := regexp.MustCompile("[`|]" + c.Name() + `\b| ` + c.Name() + "\\b[^`|]*`")
		if !c.HasSubCommands() && !c.Hidden && !word.MatchString(rows(noun)) {
			t.Errorf("README.md has no %s", c.CommandPath())
		}
	})
}

// TestPageOfOpenStackClient: each command and flag of ours that the page names exists, and the page names each group.
func TestPageOfOpenStackClient(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/openstackclient.md")
	if err != nil {
		t.Fatal(err)
	}
	root := root()
	for _, code := range regexp.MustCompile("`cloudfn ([a-z][^`]*)`").FindAllStringSubmatch(string(text), -1) {
		words := strings.Fields(code[1])
		command, rest, err := root.Find(words)
		if err != nil || command == root {
			t.Errorf("there is no command %q: %v", code[1], err)
			continue
		}
		for _, word := range rest {
			name, isFlag := strings.CutPrefix(word, "--")
			if isFlag && command.Flags().Lookup(name) == nil || !isFlag && !slices.Contains(command.ValidArgs, word) {
				t.Errorf("%q: %s has no %s", code[1], command.CommandPath(), word)
			}
		}
	}
	for _, c := range root.Commands() {
		_, back, _ := strings.Cut(string(text), "## From cloudfn")
		if !c.Hidden && !strings.Contains(back, "`cloudfn "+c.Name()+"`") {
			t.Errorf("the page does not lead back from %s", c.Name())
		}
	}
}

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

func receiver(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "receiver NAME")
	ts.Setenv(args[0], testkit.NewReceiver(tb(ts), func(http.ResponseWriter, *http.Request) {}).URL)
}

func forge(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "forge URL")
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, args[0],
		strings.NewReader(`{"state":"active"}`))
	ts.Check(err)
	other, err := standardwebhooks.NewWebhook("whsec_" + strings.Repeat("A", 32))
	ts.Check(err)
	now := time.Now()
	signature, err := other.Sign("forged:1", now, []byte(`{"state":"active"}`))
	ts.Check(err)
	for name, value := range map[string]string{
		"Ce-Id": "forged:1", "Ce-Type": "cloudfn.instance.state.v1", "Webhook-Id": "forged:1",
		"Webhook-Timestamp": strconv.FormatInt(now.Unix(), 10), "Webhook-Signature": signature,
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	ts.Check(err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		ts.Fatalf("a forged event was answered with %d", resp.StatusCode)
	}
}
