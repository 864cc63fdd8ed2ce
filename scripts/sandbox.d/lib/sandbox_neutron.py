"""neutron-server with its API only, in one process.

The stock neutron-server forks an API worker and two RPC workers, which serve
L2/L3/DHCP agents.  The sandbox has no agents.
"""
from neutron.cmd import eventlet as _patched  # noqa: F401  monkey-patches first
import signal

from neutron import server
from neutron import service


def _serve():
    api = service.serve_wsgi(service.NeutronApiService)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    api.wait()


def main():
    server.boot_server(_serve)
