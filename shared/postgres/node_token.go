package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const setNodeTokenSQL = `
insert into node_tokens as t (node, hash, created_by) values ($1, $2, $3)
on conflict (node) do update set hash = excluded.hash, created_by = excluded.created_by, created_at = clock_timestamp()`

// SetToken stores the hash of a node's token in the place of the one before. A host that is not known yet is stored.
func (s Nodes) SetToken(ctx context.Context, name string, hash []byte, createdBy string) error {
	return s.DB.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := exec(ctx, tx, nameNodeSQL, name); err != nil {
			return err
		}
		_, err := exec(ctx, tx, setNodeTokenSQL, name, hash, createdBy)
		return err
	})
}

// RevokeToken ends a node's token. It is NotFound for a node without one.
func (s Nodes) RevokeToken(ctx context.Context, name string) error {
	n, err := exec(ctx, s.DB.pool, "delete from node_tokens where node = $1", name)
	if err == nil && n == 0 {
		err = apperr.New(apperr.NotFound, "node %.64q has no token", name)
	}
	return err
}

const heartbeatSQL = `
update nodes set agent_at = clock_timestamp(), agent_status = $3, agent_reason = $4
where name = $1 and exists (select from node_tokens where node = $1 and hash = $2)
returning ` + nodeColumns

// Heartbeat records what an agent reports of its host: up, suspect or down. The next Observe makes its status of it. It
// is Forbidden with the token of another node, and Unauthenticated with one that no node has.
func (s Nodes) Heartbeat(
	ctx context.Context, name string, tokenHash []byte, status domain.NodeStatus, reason string,
) (domain.Node, error) {
	n, found, err := queryFound[domain.Node](ctx, s.DB.pool, heartbeatSQL, name, tokenHash, status, reason)
	if err != nil || found {
		return n, err
	}
	isAnothers, err := queryValue[bool](ctx, s.DB.pool,
		"select exists (select from node_tokens where hash = $1)", tokenHash)
	if err == nil && isAnothers {
		return n, apperr.New(apperr.Forbidden, "the token is that of another node")
	}
	if err == nil {
		err = apperr.New(apperr.Unauthenticated,
			"unknown node token: an admin makes one by POST /v1/nodes/{name}/token")
	}
	return n, err
}
