"""octavia-worker in one process, and the drivers of a load balancer that no amphora serves.

The worker runs Octavia's real flows with Octavia's own no-op drivers for the
amphora, its server and its volume.  The address of a load balancer is real: a
port in Neutron, made and deleted as Octavia does it.
"""
import datetime
import functools
import signal
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from octavia.certificates.common import local
from octavia.certificates.generator import local as generator
from octavia.network.drivers.neutron import allowed_address_pairs as pairs
from octavia.network.drivers.noop_driver import driver as noop


_nothing = noop.NoopNetworkDriver()
_plugged = set()   # ports that only _nothing knows


class NetworkDriver(pairs.AllowedAddressPairsDriver):
    """Networks, subnets and the VIP's port in Neutron; nothing is plugged into an amphora."""

    def get_port(self, port_id, context=None):
        if port_id in _plugged:
            return _nothing.get_port(port_id)
        return super().get_port(port_id, context=context)

    def plug_network(self, compute_id, network_id):
        interface = _nothing.plug_network(compute_id, network_id)
        _plugged.add(interface.port_id)
        return interface

    def plug_fixed_ip(self, port_id, subnet_id, ip_address=None):
        return _nothing.get_port(port_id)

    unplug_fixed_ip = plug_fixed_ip


for _name in ('plug_vip', 'unplug_vip', 'plug_aap_port', 'unplug_aap_port', 'update_vip', 'update_vip_sg',
              'update_aap_port_sg', 'unplug_network', 'get_plugged_networks', 'get_network_configs', 'plug_port',
              'failover_preparation', 'wait_for_port_detach', 'create_port', 'set_port_admin_state_up'):
    def _noop(self, *args, _name=_name, **kwargs):
        return getattr(_nothing, _name)(*args, **kwargs)
    setattr(NetworkDriver, _name, _noop)


@functools.cache
def certificate():
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'no amphora')])
    now = datetime.datetime.utcnow()
    pem = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
           .serial_number(x509.random_serial_number()).not_valid_before(now)
           .not_valid_after(now + datetime.timedelta(days=3650)).sign(key, hashes.SHA256()))
    return local.LocalCert(
        certificate=pem.public_bytes(Encoding.PEM),
        private_key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


class CertGenerator(generator.LocalCertGenerator):
    """One certificate for all amphorae: no one looks at it, and one for each would cost half a second."""

    @classmethod
    def generate_cert_key_pair(cls, *args, **kwargs):
        return certificate()


def worker():
    from octavia.common import config
    from octavia.common import service
    from octavia.controller.queue.v2 import consumer
    service.prepare_service(sys.argv)
    consumer.ConsumerService(0, config.cfg.CONF).run()
    while True:
        signal.pause()
