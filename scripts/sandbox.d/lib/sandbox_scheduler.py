"""A filter of nova-scheduler that keeps ordinary servers off the hosts of SANDBOX_RESERVABLE while cloudfn has none
of them in an aggregate. Then the aggregate isolates them: what the tests see is Nova's isolation. A server for which
Placement listed the host before that can still get onto it: testkit.Isolate waits for those.

An isolating aggregate of the sandbox would make them useless for reservations: a server must require the traits of all
aggregates of its host.
"""
import nova.conf
from nova.scheduler import filters

CONF = nova.conf.CONF


class UnreservedHostsFilter(filters.BaseHostFilter):
    """isolated_hosts take servers that require a custom trait, and those that name the host."""

    RUN_ON_REBUILD = False

    def host_passes(self, host_state, spec_obj):
        if host_state.host not in CONF.filter_scheduler.isolated_hosts:
            return True
        if any(a.name.startswith('cloudfn-') for a in host_state.aggregates):
            return True
        target = spec_obj.requested_destination
        if target and 'host' in target and target.host == host_state.host:
            return True
        wanted = {k[len('trait:'):] for k, v in spec_obj.flavor.extra_specs.items()
                  if k.startswith('trait:') and v == 'required'}
        if spec_obj.image:
            wanted.update(spec_obj.image.properties.get('traits_required') or ())
        return any(t.startswith('CUSTOM_') for t in wanted)   # Placement has looked whether the host has it
