"""What seed.py waits for."""
import os
import sys
import time

from seed_rest import CFG, NO, PL, STATE, call


def topic(piece):
    """The queue of a piece."""
    name = piece.partition('-')[2]
    if piece.startswith('nova-'):
        return name if name in ('conductor', 'scheduler') else 'compute.' + name
    return {'cinder-scheduler': piece, 'cinder-volume': 'cinder-volume.sandbox@fake',
            'octavia-worker': 'octavia_provisioning_v2'}[piece]


def consumers(pieces, limit=120):
    """Wait until every piece consumes its queue: Nova's and Cinder's own lists of
    services say "up" for a minute after a process died, so they cannot be called."""
    import amqp
    end = time.time() + limit
    host, port, secret = CFG['AMQP'].rsplit(':', 2)
    missing = list(pieces)
    while missing:
        try:
            with amqp.Connection('%s:%s' % (host, port), userid='sandbox',
                                 password=secret, connect_timeout=5) as c:
                while missing:
                    ch = c.channel()
                    if not ch.queue_declare(topic(missing[0]), passive=True).consumer_count:
                        break
                    ch.close()
                    missing.pop(0)
        except (amqp.exceptions.AMQPError, OSError):
            pass
        for name in missing:
            with open('run/%s.pid' % name) as f:
                if not os.path.exists('/proc/' + f.read().split()[0]):
                    sys.exit('%s died, see %s/log/%s.log' % (name, STATE, name))
        if missing:
            if time.time() > end:
                sys.exit('not on the message bus: %s' % ' '.join(missing))
            time.sleep(0.25)


def hosts(want, limit=90):
    """Wait until every compute host is up, in the cell map and in Placement."""
    end = time.time() + limit
    while True:
        hyp = {x['hypervisor_hostname'] for x in call('GET', NO + '/os-hypervisors')['hypervisors']}
        rps = {x['name'] for x in call('GET', PL + '/resource_providers')['resource_providers']}
        # nova-compute reports 5 s after its start. Until then the scheduler skips a host whose last report is old.
        up = {x['host'] for x in call('GET', NO + '/os-services', params={'binary': 'nova-compute'}, headers={
            'OpenStack-API-Version': 'compute 2.11'})['services'] if x['state'] == 'up' or x['forced_down']}
        if hyp & rps & up >= want:
            return
        if time.time() > end:
            sys.exit('compute hosts: Nova knows %s, up are %s, Placement knows %s, wanted %s' % (
                sorted(hyp), sorted(up), sorted(rps), sorted(want)))
        time.sleep(0.5)
