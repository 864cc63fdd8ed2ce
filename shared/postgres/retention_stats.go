package postgres

import (
	"context"
	"time"
)

const (
	deleteSumsSQL  = `delete from stats_sums where hour < now() - $1::interval`
	deleteHoursSQL = `
delete from stats_hourly where ctid = any(array(
    select ctid from stats_hourly where hour < now() - $1::interval order by hour limit $2))`
	deleteProjectsSQL = `delete from stats_projects where last_hour < now() - $1::interval`
)

// deleteStats deletes hours, and then projects that have not been counted since.
func (r Retention) deleteStats(ctx context.Context, until time.Time) (done bool, err error) {
	if _, err := exec(ctx, r.DB.pool, deleteSumsSQL, r.Config.Stats); err != nil {
		return false, err
	}
	for time.Now().Before(until) {
		n, err := exec(ctx, r.DB.pool, deleteHoursSQL, r.Config.Stats, retentionRows)
		if err != nil {
			return false, err
		}
		if n < retentionRows {
			_, err = exec(ctx, r.DB.pool, deleteProjectsSQL, r.Config.Stats)
			return err == nil, err
		}
	}
	return false, nil
}
