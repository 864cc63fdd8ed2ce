package nodes

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// follow looks after the servers that Nova was asked to move, whichever replica has asked.
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

// followHere decides about a server that has not left: Nova is at work on it, or has failed, or was never asked.
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
	slog.WarnContext(ctx, "a skipped server of a drain", "node", p.drain.Node, "server_id", s.ServerID, "error", err)
	return nil
}
