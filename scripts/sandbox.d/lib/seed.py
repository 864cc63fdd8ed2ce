"""Fill a bare control plane over REST.  Idempotent: finds by name, then creates.

seed.py identity           endpoints, domains, projects, users, roles
seed.py resources          images, flavors, networks
seed.py ready              writes clouds.yaml, waits until every piece works
seed.py consumers TOPIC..  waits until somebody serves each RPC topic
"""
import json
import os
import subprocess
import sys
import time

import requests

STATE = os.getcwd()
CFG = {k[8:]: v for k, v in os.environ.items() if k.startswith('SANDBOX_')}
URL = {s: 'http://%s:%s' % (CFG['HOST'], CFG[s.upper() + '_PORT'])
       for s in ('keystone', 'glance', 'placement', 'nova', 'neutron')}
KS, NO, NE = URL['keystone'] + '/v3', URL['nova'] + '/v2.1', URL['neutron'] + '/v2.0'
GL, PL = URL['glance'] + '/v2', URL['placement']

s = requests.Session()
s.trust_env = False


def wait(url, limit=120):
    end = time.time() + limit
    while True:
        try:
            if s.get(url, timeout=10).status_code < 500:
                return
        except requests.RequestException:
            pass
        if time.time() > end:
            sys.exit('no answer from %s in %s s' % (url, limit))
        time.sleep(0.2)


def password(user, domain, scope):
    """Ask for a token; the answer, whatever it is."""
    return s.post(KS + '/auth/tokens', json={'auth': {
        'identity': {'methods': ['password'], 'password': {'user': {
            'name': user, 'domain': {'name': domain}, 'password': CFG['PASSWORD']}}},
        'scope': scope}})


def login():
    wait(KS)
    r = password(CFG['ADMIN_USER'], 'Default', {'project': {
        'name': CFG['ADMIN_PROJECT'], 'domain': {'name': 'Default'}}})
    if r.status_code != 201:
        sys.exit('Keystone gives the admin no token: %s %s' % (r.status_code, r.text[:200]))
    s.headers['X-Auth-Token'] = r.headers['X-Subject-Token']


def call(method, url, body=None, **kw):
    r = s.request(method, url, json=body, **kw)
    if r.status_code >= 300:
        sys.exit('%s %s: %s %s' % (method, url, r.status_code,
                                   ' '.join(r.text[:500].split())))
    return r.json() if 'json' in r.headers.get('Content-Type', '') else None


def ensure(url, one, match, extra=None, many=None):
    """The one that GET url?match finds, else what POST url makes."""
    for found in call('GET', url, params=match)[many or one + 's']:
        if all(found.get(k) == v for k, v in match.items()):
            return found
    return call('POST', url, {one: dict(match, **(extra or {}))})[one]


# ---- identity ---------------------------------------------------------------

def endpoints():
    have = call('GET', KS + '/endpoints')['endpoints']
    for typ, name, url in (('identity', 'keystone', KS), ('image', 'glance', URL['glance']),
                           ('placement', 'placement', PL), ('compute', 'nova', NO),
                           ('network', 'neutron', URL['neutron'])):
        svc = ensure(KS + '/services', 'service', {'type': typ, 'name': name})
        for iface in ('public', 'internal', 'admin'):
            # Pods take the admin interface, at an address that they reach;
            # the services themselves use internal.
            want = {'url': url if iface != 'admin' else
                    url.replace(CFG['HOST'], CFG['POD_HOST']),
                    'region_id': CFG['REGION']}
            mine = [e for e in have if (e['service_id'], e['interface']) == (svc['id'], iface)]
            if not mine:
                call('POST', KS + '/endpoints', {'endpoint': dict(
                    want, service_id=svc['id'], interface=iface)})
            elif any(mine[0][k] != v for k, v in want.items()):
                call('PATCH', KS + '/endpoints/' + mine[0]['id'], {'endpoint': want})


def user(name, domain):
    found = call('GET', KS + '/users', params={
        'name': name, 'domain_id': domain['id']})['users']
    if not found:
        return call('POST', KS + '/users', {'user': {
            'name': name, 'domain_id': domain['id'], 'password': CFG['PASSWORD']}})['user']['id']
    # Only when needed: a changed password revokes every token of the user.
    if password(name, domain['name'], 'unscoped').status_code == 401:
        call('PATCH', KS + '/users/' + found[0]['id'],
             {'user': {'password': CFG['PASSWORD']}})
    return found[0]['id']


def identity():
    login()
    endpoints()
    role = {r: ensure(KS + '/roles', 'role', {'name': r})['id']
            for r in ('admin', 'member', 'reader', 'service')}
    default = {'id': 'default', 'name': 'Default'}
    partner = ensure(KS + '/domains', 'domain', {'name': CFG['PARTNER_DOMAIN']})

    def project(name, domain):
        return 'projects/' + ensure(KS + '/projects', 'project', {
            'name': name, 'domain_id': domain['id']})['id']

    def grant(who, where, *roles, inherited=False):
        path = '%s/users/%s/roles/%%s' % (where, who)
        if inherited:
            path = 'OS-INHERIT/%s/inherited_to_projects' % path
        for r in roles:
            call('PUT', '%s/%s' % (KS, path % role[r]))

    service = project('service', default)
    for name in ('glance', 'placement', 'nova', 'neutron'):
        grant(user(name, default), service, 'admin', 'service')
    demo = project(CFG['DEMO_PROJECT'], default)
    alt = project(CFG['ALT_PROJECT'], default)
    dev = project(CFG['PARTNER_PROJECT'], partner)
    grant(user(CFG['DEMO_USER'], default), demo, 'member')
    grant(user(CFG['ALT_USER'], default), alt, 'member')
    grant(user(CFG['READER_USER'], default), demo, 'reader')
    grant(user(CFG['PARTNER_USER'], partner), dev, 'member')
    partner_admin = user(CFG['PARTNER_ADMIN_USER'], partner)
    grant(partner_admin, dev, 'admin')
    grant(partner_admin, 'domains/' + partner['id'], 'admin')
    admin = user(CFG['ADMIN_USER'], default)
    for where in (demo, alt, dev):
        grant(admin, where, 'admin')
    project(CFG['COLLECTOR_PROJECT'], default)
    collector = user(CFG['COLLECTOR_USER'], default)
    for domain in (default, partner):
        grant(collector, 'domains/' + domain['id'], 'reader')
        grant(collector, 'domains/' + domain['id'], 'reader', inherited=True)
    user(CFG['DELEGATE_USER'], default)


# ---- resources --------------------------------------------------------------

def images():
    wait(GL + '/schemas/image')
    for name, visibility in ((CFG['IMAGE'], 'public'),
                             (CFG['IMAGE_DEACTIVATED'], 'public'),
                             (CFG['IMAGE_COMMUNITY'], 'community')):
        found = call('GET', GL + '/images', params={
            'name': name, 'visibility': visibility})['images']
        while found and found[0]['status'] not in ('queued', 'active', 'deactivated'):
            call('DELETE', '%s/images/%s' % (GL, found.pop(0)['id']))   # half uploaded
        img = found[0] if found else call('POST', GL + '/images', {
            'name': name, 'disk_format': 'qcow2', 'container_format': 'bare',
            'visibility': visibility, 'min_disk': 1, 'min_ram': 64,
            'os_distro': 'cirros', 'os_version': '0.6'})
        if img['status'] == 'queued':
            path = os.path.join(STATE, 'image.qcow2')
            subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', path, '1M'], check=True)
            with open(path, 'rb') as f:
                call('PUT', '%s/images/%s/file' % (GL, img['id']), data=f,
                     headers={'Content-Type': 'application/octet-stream'})
        if name == CFG['IMAGE_DEACTIVATED']:
            call('POST', '%s/images/%s/actions/deactivate' % (GL, img['id']))


def flavors(demo):
    wait(NO)
    have = {f['name']: f['id'] for f in call('GET', NO + '/flavors', params={
        'is_public': 'None'})['flavors']}
    for fid, size, ram, disk, vcpus in (('1', 'TINY', 512, 1, 1), ('2', 'SMALL', 2048, 20, 1),
                                        ('3', 'MEDIUM', 4096, 40, 2), ('4', 'DEMO', 1024, 5, 1)):
        name = CFG['FLAVOR_' + size]
        if name not in have:
            have[name] = call('POST', NO + '/flavors', {'flavor': {
                'name': name, 'ram': ram, 'disk': disk, 'vcpus': vcpus,
                'id': 'auto' if fid in have.values() else fid,
                'os-flavor-access:is_public': size != 'DEMO'}})['flavor']['id']
    url = '%s/flavors/%s/' % (NO, have[CFG['FLAVOR_DEMO']])
    if demo not in [a['tenant_id'] for a in call('GET', url + 'os-flavor-access')['flavor_access']]:
        call('POST', url + 'action', {'addTenantAccess': {'tenant': demo}})


def network(name, project, **extra):
    return ensure(NE + '/networks', 'network', {'name': name, 'tenant_id': project}, extra)


def subnet(net, suffix, cidr, **extra):
    return ensure(NE + '/subnets', 'subnet', {
        'name': net['name'] + suffix, 'network_id': net['id']}, dict(
            extra, cidr=cidr, ip_version=6 if ':' in cidr else 4,
            tenant_id=net['tenant_id']))


def networks(projects):
    wait(URL['neutron'])
    admin, demo = projects['ADMIN'], projects['DEMO']
    public = network(CFG['PUBLIC_NETWORK'], admin, **{
        'router:external': True, 'provider:network_type': 'flat',
        'provider:physical_network': 'public'})
    subnet(public, '-subnet', CFG['PUBLIC_CIDR'], enable_dhcp=False)
    shared = network(CFG['SHARED_NETWORK'], admin, shared=True)
    subnet(shared, '-ipv4', CFG['SHARED_CIDR'])
    # Neutron itself computes the address of each port: no agent needed.
    subnet(shared, '-ipv6', CFG['SHARED_CIDR6'], ipv6_ra_mode='slaac', ipv6_address_mode='slaac')
    for who in ('ALT', 'PARTNER'):
        net = network(CFG[who + '_NETWORK'], projects[who])
        subnet(net, '-subnet', CFG[who + '_CIDR'], dns_nameservers=[CFG['DNS']])
    net = network(CFG['PRIVATE_NETWORK'], demo)
    sub = subnet(net, '-subnet', CFG['PRIVATE_CIDR'], dns_nameservers=[CFG['DNS']])
    router = ensure(NE + '/routers', 'router', {'name': 'demo-router', 'tenant_id': demo},
                    {'external_gateway_info': {'network_id': public['id']}})
    if not call('GET', NE + '/ports', params={
            'device_id': router['id'],
            'device_owner': 'network:router_interface'})['ports']:
        call('PUT', '%s/routers/%s/add_router_interface' % (NE, router['id']),
             {'subnet_id': sub['id']})


def resources():
    login()
    partner = ensure(KS + '/domains', 'domain', {'name': CFG['PARTNER_DOMAIN']})['id']
    projects = {who: ensure(KS + '/projects', 'project', {
        'name': CFG[who + '_PROJECT'],
        'domain_id': partner if who == 'PARTNER' else 'default'})['id']
        for who in ('ADMIN', 'DEMO', 'ALT', 'PARTNER')}
    images()
    flavors(projects['DEMO'])
    networks(projects)


# ---- ready ------------------------------------------------------------------

def consumers(want, limit=120):
    """Wait until every RPC topic has a consumer: Nova's own service list says
    "up" for a minute after a process died, so it cannot be asked."""
    import amqp
    end = time.time() + limit
    host, port, secret = CFG['AMQP'].rsplit(':', 2)
    missing = list(want)
    while missing:
        try:
            with amqp.Connection('%s:%s' % (host, port), userid='sandbox',
                                 password=secret, connect_timeout=5) as c:
                while missing:
                    ch = c.channel()
                    if not ch.queue_declare(missing[0], passive=True).consumer_count:
                        break
                    ch.close()
                    missing.pop(0)
        except (amqp.exceptions.AMQPError, OSError):
            pass
        for name in (topic.replace('compute.', '') for topic in missing):
            with open('run/nova-%s.pid' % name) as f:
                if not os.path.exists('/proc/' + f.read().split()[0]):
                    sys.exit('nova-%s died, see %s/log/nova-%s.log' % (name, STATE, name))
        if missing:
            if time.time() > end:
                sys.exit('nobody serves %s on the message bus' % ' '.join(missing))
            time.sleep(0.25)


def hosts(want, limit=90):
    """Wait until every compute host is in the cell map and in Placement."""
    end = time.time() + limit
    while True:
        hyp = {x['hypervisor_hostname'] for x in call('GET', NO + '/os-hypervisors')['hypervisors']}
        rps = {x['name'] for x in call('GET', PL + '/resource_providers')['resource_providers']}
        if hyp >= want and rps >= want:
            return
        if time.time() > end:
            sys.exit('compute hosts: Nova knows %s, Placement %s, wanted %s' % (
                sorted(hyp), sorted(rps), sorted(want)))
        time.sleep(0.5)


def clouds():
    rows = (('admin', 'ADMIN_USER', 'ADMIN_PROJECT', ''), ('demo', 'DEMO_USER', 'DEMO_PROJECT', ''),
            ('alt', 'ALT_USER', 'ALT_PROJECT', ''), ('reader', 'READER_USER', 'DEMO_PROJECT', ''),
            ('partner', 'PARTNER_USER', 'PARTNER_PROJECT', 'PARTNER_DOMAIN'),
            ('partner-admin', 'PARTNER_ADMIN_USER', 'PARTNER_PROJECT', 'PARTNER_DOMAIN'),
            ('collector', 'COLLECTOR_USER', 'COLLECTOR_PROJECT', ''), ('delegate', 'DELEGATE_USER', '', ''))
    path = os.path.join(STATE, 'clouds.yaml')
    with open(path + '.new', 'w') as f:
        f.write('clouds:\n')
        for name, usr, project, domain in rows:
            domain = CFG[domain] if domain else 'Default'
            f.write('  %s:\n    auth:\n' % name)
            for k, v in (('auth_url', KS), ('username', CFG[usr]), ('password', CFG['PASSWORD']),
                         ('project_name', CFG.get(project)), ('user_domain_name', domain),
                         ('project_domain_name', domain if project else None)):
                if v:
                    f.write('      %s: %s\n' % (k, json.dumps(v)))
            f.write('    region_name: %s\n    identity_api_version: 3\n'
                    '    interface: public\n' % json.dumps(CFG['REGION']))
    os.replace(path + '.new', path)


def ready():
    clouds()
    for url in (KS, PL, GL, URL['neutron'], NO):
        wait(url)
    login()
    computes = CFG['COMPUTES'].split()
    consumers(['conductor', 'scheduler'] + ['compute.' + c for c in computes])
    hosts(set(computes))


if sys.argv[1] == 'consumers':
    consumers(sys.argv[2:])
else:
    {'identity': identity, 'resources': resources, 'ready': ready}[sys.argv[1]]()
