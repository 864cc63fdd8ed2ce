"""neutron-server with its API only, in one process.

The stock neutron-server forks an API worker and two RPC workers, which serve
L2/L3/DHCP agents.  The sandbox has no agents.  For no API worker Zed has the
setting api_workers = 0, which later releases reject.

Neutron loads nearly every relation with lazy='subquery', for which SQLAlchemy
1.4 builds and compiles a statement again each time: half of the processor time
of a request.  'selectin' loads the same rows with statements that it caches.
"""
from neutron.cmd import eventlet as _patched  # noqa: F401  monkey-patches first
import signal

from sqlalchemy.orm import relationships

_init = relationships.RelationshipProperty.__init__


def _selectin(self, *args, **kwargs):
    _init(self, *args, **kwargs)
    # Only how it loads: neutron_lib reads the attribute lazy itself.
    if self.lazy == 'subquery':
        self.strategy_key = (('lazy', 'selectin'),)


# Before Neutron's models are imported.
relationships.RelationshipProperty.__init__ = _selectin

from neutron import server  # noqa: E402
from neutron import service  # noqa: E402


def _serve():
    service._get_api_workers = lambda: 0
    api = service.serve_wsgi(service.NeutronApiService)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    api.wait()


def main():
    server.boot_server(_serve)
