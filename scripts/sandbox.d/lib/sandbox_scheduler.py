"""A filter of nova-scheduler that keeps ordinary servers off the hosts of SANDBOX_RESERVABLE.

An isolating aggregate would, too, but then nobody could reserve them: a server must have the required traits of all
aggregates of its host.
"""
import nova.conf
from nova.scheduler import filters

CONF = nova.conf.CONF


class SpareHostsFilter(filters.BaseHostFilter):
    """isolated_hosts take servers that require a trait of somebody's own, and those that name the host."""

    RUN_ON_REBUILD = False

    def host_passes(self, host_state, spec_obj):
        if host_state.host not in CONF.filter_scheduler.isolated_hosts:
            return True
        target = spec_obj.requested_destination
        if target and 'host' in target and target.host == host_state.host:
            return True
        wanted = {k[len('trait:'):] for k, v in spec_obj.flavor.extra_specs.items()
                  if k.startswith('trait:') and v == 'required'}
        if spec_obj.image:
            wanted.update(spec_obj.image.properties.get('traits_required') or ())
        return any(t.startswith('CUSTOM_') for t in wanted)   # Placement has looked whether the host has it
