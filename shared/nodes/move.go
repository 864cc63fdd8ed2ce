package nodes

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// move begins to move servers, as many as may move at a time.
func (p *pass) move(ctx context.Context) error {
	room := p.parallel - inFlight(p.drain.Servers) - p.stillMoving()
	chosen := map[string]bool{}
	for n := range p.drain.Servers {
		s := &p.drain.Servers[n]
		if s.Status != domain.DrainPending || s.Attempts > 0 && p.now.Before(s.BegunAt.Add(pauseAfter(s.Attempts))) {
			continue
		}
		server, isHere := p.here[s.ServerID]
		method, _ := Plan(server)
		willMove := isHere && (method == domain.LiveMigration || method == domain.ColdMigration)
		if willMove && room <= 0 {
			continue
		}
		if willMove {
			room--
		}
		chosen[s.ServerID] = true
	}
	return p.each(ctx, func(s domain.DrainServer) bool { return chosen[s.ServerID] }, p.begin)
}

// stillMoving counts the late servers that Nova moves still. A migration that never ends keeps its slot for one more
// timeout.
func (p *pass) stillMoving() (n int) {
	for _, s := range p.drain.Servers {
		server, isHere := p.here[s.ServerID]
		method, _ := Plan(server)
		if s.Status == domain.DrainSkipped && s.Method != "" && isHere && method == Wait &&
			p.now.Before(s.EndedAt.Add(p.timeout)) {
			n++
		}
	}
	return n
}

// pauseAfter is the pause after so many attempts that failed.
func pauseAfter(attempts int) time.Duration { return time.Duration(attempts) * retryPause }

// begin requests from Nova to move a pending server. The request is stored before, so that no replica moves a server
// that Nova moves already. That is refused when the drain was cancelled since. An attempt counts after the call: a
// replica that dies before it has made no request.
func (p *pass) begin(ctx context.Context, s *domain.DrainServer) error {
	server, isHere := p.here[s.ServerID]
	if !isHere {
		return p.findElsewhere(ctx, s)
	}
	method, reason := Plan(server)
	switch method {
	case Skip:
		p.skip(s, reason)
		return nil
	case Wait:
		p.wait(s, reason)
		return nil
	}
	pending := *s
	s.Method, s.Status, s.Reason, s.BegunAt = method, domain.DrainMigrating, "", p.now
	if started, err := p.Drains.StartServer(ctx, p.claim, *p.drain, *s); err != nil || !started {
		*s = pending
		return err
	}
	call := p.cloud.LiveMigrate
	if method == domain.ColdMigration {
		call = p.cloud.ColdMigrate
	}
	err := call(ctx, s.ServerID)
	s.Attempts++
	if err == nil {
		return nil
	}
	switch code := apperr.CodeOf(err); code {
	case apperr.NotFound: // if it was deleted, the next pass does not list it
		p.failed(s, "Nova lists it on the host but does not find it: is the account of watch-nodes an admin of Nova?")
	case apperr.Conflict, apperr.Invalid, apperr.Forbidden, apperr.Quota, apperr.Unprocessable, apperr.Unsupported:
		p.failed(s, apperr.As(err).Message)
	default: // Nova may have accepted it: the next pass sees
		return err
	}
	return nil
}

// wait leaves a server for later, which Nova is at work on for another reason.
func (p *pass) wait(s *domain.DrainServer, reason string) {
	s.Reason = reason
	if s.BegunAt.IsZero() {
		s.BegunAt = p.now
	}
	if p.isLate(*s) {
		p.skip(s, reason+", after "+p.timeout.String())
	}
}

func (p *pass) isLate(s domain.DrainServer) bool {
	return p.now.After(s.BegunAt.Add(p.timeout))
}

func (p *pass) skip(s *domain.DrainServer, reason string) {
	s.Status, s.Reason, s.EndedAt = domain.DrainSkipped, reason, p.now
}

// failed has the request repeated after a pause, or skips a server that cannot be moved.
func (p *pass) failed(s *domain.DrainServer, reason string) {
	s.Status, s.Reason = domain.DrainPending, reason
	if s.Attempts >= MaxAttempts {
		p.skip(s, reason)
	}
}

// findElsewhere ends a server whose move was not requested, and is not on the host any more.
func (p *pass) findElsewhere(ctx context.Context, s *domain.DrainServer) error {
	server, err := p.cloud.Server(ctx, s.ServerID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		p.skip(s, "it was deleted")
		return nil
	case err != nil:
		p.wait(s, apperr.As(err).Message)
		return err
	case server.Partial || server.Host == p.drain.Node: // it may have just come back
		p.wait(s, "Nova does not list it on the host")
		return nil
	case server.Host == "":
		p.skip(s, onNoHost(server))
		return nil
	}
	p.moved(s, server)
	return nil
}

func (p *pass) moved(s *domain.DrainServer, server domain.Server) {
	s.Status, s.Target, s.Reason, s.EndedAt = domain.DrainMoved, server.Host, "", p.now
	if server.Status == "ERROR" {
		s.Reason = "it is in ERROR on its new host"
		if server.Fault != nil {
			s.Reason += ": " + server.Fault.Message
		}
	}
}

// follow checks the servers that Nova was requested to move, whichever replica has requested it.
func (p *pass) follow(ctx context.Context) error {
	err := p.each(ctx, isInFlight, p.followOne)
	if errors.Is(err, domain.ErrFenced) {
		return err
	}
	// Those that took too long may have moved after all.
	return errors.Join(err, p.each(ctx, func(s domain.DrainServer) bool {
		_, isHere := p.here[s.ServerID]
		return s.Status == domain.DrainSkipped && s.Method != "" && !isHere && p.drain.Status == domain.DrainRunning
	}, p.followLate))
}

// followOne follows a server until it is late. After that an error skips it, so that the drain ends.
func (p *pass) followOne(ctx context.Context, s *domain.DrainServer) error {
	err := p.locate(ctx, s)
	if err == nil || errors.Is(err, domain.ErrFenced) || ctx.Err() != nil || !p.isLate(*s) {
		return err
	}
	p.late(s, apperr.As(err).Message)
	return nil
}

// locate finds out where a server is, and what became of its move.
func (p *pass) locate(ctx context.Context, s *domain.DrainServer) error {
	server, err := p.find(ctx, s)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		p.skip(s, "it was deleted")
		return nil
	case err != nil:
		return err
	case server.Host == p.drain.Node:
		return p.followHere(ctx, s, server)
	case server.Host == "" && server.Task == "" && !server.Partial:
		p.skip(s, onNoHost(server))
		return nil
	}
	return p.followThere(ctx, s, server)
}

// find reads a server that moves. One on the host was read with its others.
func (p *pass) find(ctx context.Context, s *domain.DrainServer) (domain.Server, error) {
	if server, isHere := p.here[s.ServerID]; isHere {
		server.Host = p.drain.Node
		return server, nil
	}
	return p.cloud.Server(ctx, s.ServerID)
}

// followHere decides about a server that has not left: Nova is at work on it, or has failed, or was never called.
func (p *pass) followHere(ctx context.Context, s *domain.DrainServer, server domain.Server) error {
	method, reason := Plan(server)
	if method == Wait {
		p.late(s, reason)
		return nil
	}
	last, found, err := p.cloud.LastMigration(ctx, s.ServerID, p.drain.Node)
	if err != nil {
		return err
	}
	if found && !last.IsOver() {
		p.late(s, "Nova's migration is "+last.Status)
		return nil
	}
	fault := "Nova has not moved it"
	if found && last.HasFailed() {
		said, err := p.cloud.MigrationFault(ctx, s.ServerID)
		if err != nil && apperr.CodeOf(err) != apperr.Forbidden {
			return err
		}
		fault = cmp.Or(said, "Nova's migration is "+last.Status)
	}
	if method == Skip {
		p.skip(s, reason+": "+fault)
		return nil
	}
	p.failed(s, fault)
	return nil
}

func onNoHost(server domain.Server) string { return "it is on no host any more: " + server.Status }

// late gives up a server that moves for too long. Nova goes on with it.
func (p *pass) late(s *domain.DrainServer, reason string) {
	if isInFlight(*s) && p.isLate(*s) {
		p.skip(s, "it has not moved within "+p.timeout.String()+": "+reason)
	}
}

// followThere ends the move of a server that has left. A cold migration is confirmed, a resize of its owner is not.
func (p *pass) followThere(ctx context.Context, s *domain.DrainServer, server domain.Server) error {
	if server.Partial || server.Task != "" {
		p.late(s, "Nova is at work on it: "+server.Task)
		return nil
	}
	if server.Status != "VERIFY_RESIZE" || s.Method != domain.ColdMigration {
		p.moved(s, server)
		return nil
	}
	last, found, err := p.cloud.LastMigration(ctx, s.ServerID, p.drain.Node)
	if err != nil {
		return err
	}
	if !found || last.IsResize {
		p.moved(s, server)
		return nil
	}
	s.Target = server.Host
	if s.Status == domain.DrainMigrating {
		s.Status = domain.DrainConfirming
		if err := p.save(ctx, s); err != nil {
			return err
		}
	}
	if err := p.cloud.ConfirmMigration(ctx, s.ServerID); err != nil {
		return err
	}
	p.late(s, "Nova has not confirmed its migration")
	return nil
}

// followLate refreshes a skipped server that is not on the host any more. It stays skipped when that fails.
func (p *pass) followLate(ctx context.Context, s *domain.DrainServer) error {
	server, err := p.cloud.Server(ctx, s.ServerID)
	if err == nil && server.Host != "" && server.Host != p.drain.Node {
		err = p.followThere(ctx, s, server)
	}
	if err == nil || errors.Is(err, domain.ErrFenced) {
		return err
	}
	slog.WarnContext(ctx, "skipped server not read", "node", p.drain.Node, "server_id", s.ServerID, "error", err)
	return nil
}
