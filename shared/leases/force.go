package leases

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// What an end does so that no server and no user keeps it from getting done: it locks servers, gets them out of states
// in which Nova ends none, and is given up after a time.

// isLate reports whether the end of the lease has been tried for a time.
func (p *pass) isLate(limit time.Duration) bool {
	since := p.lease.EndingSince
	return limit > 0 && !since.IsZero() && p.now.Sub(since) >= limit
}

// endPause is the pause after so many failed attempts at an end.
func endPause(attempts int) time.Duration {
	return flow.Backoff(shortestPause, longestErrorPause, attempts)
}

// failEnd has the lease in error when its end has been tried for too long. It is tried less often from then on: its
// servers may be deleted, or a host may be up again.
func (p *pass) failEnd() {
	l := p.lease
	code, why := string(apperr.Conflict), "Nova or run-connections is still at work"
	if p.failure != nil {
		code, why = p.failure.Code, p.failure.Detail
	}
	if len(p.left) > 0 {
		shown := p.left[:min(len(p.left), maxNamed)]
		why = "on reserved hosts are still " + strings.Join(shown, ", ")
		if more := len(p.left) - len(shown); more > 0 {
			why += fmt.Sprintf(" and %d more", more)
		}
	}
	l.Problem = &domain.Problem{
		Code: code, Detail: fmt.Sprintf("the end could not be done within %s: %s", p.EndFor, why),
	}
	if l.Status == domain.LeaseEnding {
		l.Attempts = 0
		slog.WarnContext(context.Background(), "lease end timed out", "lease_id", l.ID, "project_id",
			l.ProjectID, "reason", l.Problem.Detail)
	}
	l.Status, l.EndResult = domain.LeaseError, domain.StepFailed
}

// maxNamed is how many servers a reason names.
const maxNamed = 10

// described names a server of the reservation for its owner.
func described(s domain.Server) string {
	state := s.Status
	if s.Task != "" {
		state += ", " + s.Task
	}
	return fmt.Sprintf("server %s (%s, %s)", s.ID, s.Name, state)
}

// lock locks the servers that on_end takes off their hosts, so that their users cannot start, rescue or revert them
// meanwhile. Which are locked is stored first. A server that its owner has locked keeps that lock, unless the end takes
// long: then the owner may be the reason.
func (e *ending) lock(ctx context.Context) error {
	if e.lease.OnEnd == domain.OnEndDelete || e.lease.OnEnd == domain.OnEndNone {
		return nil
	}
	var toLock []string
	isNew := false
	for _, host := range e.hosts {
		for _, server := range host.own {
			done := e.done(server.ID)
			switch {
			case done.Locked && server.Locked, server.Locked && !e.isLate(e.EndFor/2):
				continue
			case !done.Locked:
				done.Locked, isNew = true, true
			}
			toLock = append(toLock, server.ID)
		}
	}
	if isNew {
		if err := e.Store.SaveStep(ctx, e.claim, e.lease, e.ClaimFor); err != nil {
			return err
		}
	}
	for _, id := range toLock {
		err := absentIsDone(e.cloud.LockServer(ctx, id))
		if apperr.CodeOf(err) == apperr.Forbidden { // a cloud whose account may not: the end can be done without
			slog.WarnContext(ctx, "server could not be locked", "server_id", id, "error", err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// done is what was done to a server. It is changed in place.
func (s hostStep) done(id string) *domain.EndingServer {
	n := slices.IndexFunc(s.r.Servers, func(d domain.EndingServer) bool { return d.ID == id })
	if n < 0 {
		s.r.Servers = append(s.r.Servers, domain.EndingServer{ID: id})
		n = len(s.r.Servers) - 1
	}
	return &s.r.Servers[n]
}

// unlock unlocks the servers that are shelved, or all when nothing more is done to them, and forgets those.
func (e *ending) unlock(ctx context.Context) error {
	isOver := e.isDone || e.lease.OnEnd == domain.OnEndNone
	resident := map[string]bool{}
	for _, host := range e.hosts {
		for _, server := range host.own {
			resident[server.ID] = true
		}
	}
	var kept []domain.EndingServer
	var failed error
	for _, d := range e.r.Servers {
		isUnlocked, err := isOver, error(nil)
		if d.Locked && (isOver || !resident[d.ID]) {
			isUnlocked, err = e.unlockServer(ctx, d.ID, isOver)
		}
		if err != nil {
			failed = err
		}
		if isUnlocked {
			d.Locked = false
		}
		if !isUnlocked || d.Did != "" {
			kept = append(kept, d)
		}
	}
	e.r.Servers = kept
	return failed
}

// unlockServer unlocks a server that is shelved, or in any state when the lease has ended. isDone reports that it needs
// no unlocking any more.
func (s hostStep) unlockServer(ctx context.Context, id string, isOver bool) (isDone bool, err error) {
	server, err := s.cloud.Server(ctx, id)
	isShelved := server.Status == "SHELVED_OFFLOADED" && server.Task == ""
	switch {
	case apperr.CodeOf(err) == apperr.NotFound || err == nil && server.Status == "DELETED":
		return true, nil
	case err == nil && !isOver && !isShelved:
		return false, nil
	case err == nil && server.Locked:
		err = absentIsDone(s.cloud.UnlockServer(ctx, id))
	}
	if apperr.CodeOf(err) == apperr.Forbidden { // a cloud whose account may not: it has locked none either
		return true, nil
	}
	return err == nil, err
}

// addRemark has the lease say what the end does to a server besides on_end, once: its owner finds another server than
// the one left. isNew reports that it has to be stored, before it is done.
func (s hostStep) addRemark(server domain.Server, words string) (isNew bool) {
	done := s.done(server.ID)
	if strings.Contains(done.Did, words) {
		return false
	}
	if done.Name = server.Name; done.Did != "" {
		words = done.Did + "; " + words
	}
	done.Did = words
	return true
}

// saveRemark adds a remark, and stores it.
func (s hostStep) saveRemark(ctx context.Context, server domain.Server, words string) error {
	if !s.addRemark(server, words) {
		return nil
	}
	return s.Store.SaveStep(ctx, s.claim, s.lease, s.ClaimFor)
}

// prepareEnd gets a server into a state in which Nova shelves it or makes an image of it. isReady is false while it
// gets there.
func (s hostStep) prepareEnd(ctx context.Context, server domain.Server) (isReady bool, err error) {
	done := s.done(server.ID)
	wasReset := !done.ResetAt.IsZero() && !done.ResetAt.Before(s.lease.EndingSince)
	switch {
	case server.Task != "" && server.Status != "ERROR": // what follows waits for it
		return true, nil
	case server.Status == "VERIFY_RESIZE":
		return false, s.cloud.ConfirmMigration(ctx, server.ID)
	case server.Status == "RESCUE":
		if err := s.saveRemark(ctx, server, "it was in RESCUE and was unrescued"); err != nil {
			return false, err
		}
		return false, s.cloud.UnrescueServer(ctx, server.ID)
	case server.Status == "ERROR" && wasReset && done.Resets >= mostResets:
		return false, apperr.New(apperr.Conflict, "it is in ERROR again after it was made active")
	case server.Status == "ERROR":
		return false, s.reset(ctx, server)
	case server.Status == "ACTIVE" && wasReset: // it may not run, whatever Nova shows
		return false, s.cloud.StopServer(ctx, server.ID)
	}
	return true, nil
}

// mostResets is how often a server is made active while its lease ends: once, and again if a replica has died before it
// did what it had stored.
const mostResets = 2

// reset makes a server in ERROR active. It is stored before it is done.
func (s hostStep) reset(ctx context.Context, server domain.Server) error {
	done := s.done(server.ID)
	before := *done
	if done.ResetAt.Before(s.lease.EndingSince) {
		done.Resets = 0
	}
	done.Resets++
	if done.ResetAt = s.now.UTC(); s.now.Before(s.lease.EndingSince) { // which this pass has stored
		done.ResetAt = s.lease.EndingSince.UTC()
	}
	s.addRemark(server, "it was in ERROR, was made active and was stopped")
	if err := s.Store.SaveStep(ctx, s.claim, s.lease, s.ClaimFor); err != nil {
		*s.done(server.ID) = before
		return err
	}
	err := s.cloud.ResetServer(ctx, server.ID)
	switch {
	case apperr.Rejected(err):
		*s.done(server.ID) = before
	case err != nil: // it may be done. It does not count: an outage of Nova would use up the resets
		s.done(server.ID).Resets--
	}
	return err
}
