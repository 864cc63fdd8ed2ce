package runconnections

import "github.com/cloudfn/cloudfn/shared/domain"

// withinLimits holds what the servers are made of, now that it is known by id, against the connection's limits, which
// may be others than when the order was taken.
func (p preparing) withinLimits(order domain.Order, places []int) error {
	limits := p.connection.Limits
	if err := limits.CheckRegion("connection_id", p.connection.RegionIn(p.region)); err != nil {
		return err
	}
	for _, n := range places {
		if err := limits.CheckSpec(order.Instances[n].Spec); err != nil {
			return err
		}
	}
	return nil
}
