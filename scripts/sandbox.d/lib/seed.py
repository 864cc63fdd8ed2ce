"""Fill a bare control plane over REST.  Idempotent: finds by name, then creates.

seed.py identity           endpoints, domains, projects, users, roles
seed.py resources          images, flavors, networks
seed.py ready              writes clouds.yaml, waits until every piece works
seed.py consumers PIECE..  waits until each of them serves its topic on the message bus
"""
import json
import os
import subprocess
import sys

from seed_rest import CFG, GL, KS, NE, NO, PL, STATE, URL, call, ensure, login, password, wait
from seed_wait import consumers, hosts


# ---- identity ---------------------------------------------------------------

# What Octavia and Barbican require besides member. The reader has none of them, so he sees no load balancers.
SERVICE_ROLES = ('load-balancer_member', 'creator')


def endpoints():
    have = call('GET', KS + '/endpoints')['endpoints']
    services = [('identity', 'keystone', KS), ('image', 'glance', URL['glance']),
                ('placement', 'placement', PL), ('compute', 'nova', NO), ('network', 'neutron', URL['neutron'])]
    for typ, name, path in (('volumev3', 'cinder', '/v3/$(project_id)s'), ('load-balancer', 'octavia', ''),
                            ('key-manager', 'barbican', '')):
        if name in URL:
            services.append((typ, name, URL[name] + path))
            continue
        for left in call('GET', KS + '/services', params={'type': typ})['services']:   # switched off since
            call('DELETE', KS + '/services/' + left['id'])
    for typ, name, url in services:
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
            for r in ('admin', 'member', 'reader', 'service', *SERVICE_ROLES)}
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
    for name in ('glance', 'placement', 'nova', 'neutron', *CFG['OPTIONAL'].split()):
        grant(user(name, default), service, 'admin', 'service')
    demo = project(CFG['DEMO_PROJECT'], default)
    alt = project(CFG['ALT_PROJECT'], default)
    dev = project(CFG['PARTNER_PROJECT'], partner)
    grant(user(CFG['DEMO_USER'], default), demo, 'member', *SERVICE_ROLES)
    grant(user(CFG['ALT_USER'], default), alt, 'member', *SERVICE_ROLES)
    grant(user(CFG['READER_USER'], default), demo, 'reader')
    grant(user(CFG['PARTNER_USER'], partner), dev, 'member', *SERVICE_ROLES)
    partner_admin = user(CFG['PARTNER_ADMIN_USER'], partner)
    grant(partner_admin, dev, 'admin')
    grant(partner_admin, 'domains/' + partner['id'], 'admin')
    admin = user(CFG['ADMIN_USER'], default)
    for where in (demo, alt, dev):
        grant(admin, where, 'admin')
    cloudfn = project(CFG['COLLECTOR_PROJECT'], default)
    grant(user(CFG['LEASES_USER'], default), cloudfn, 'admin')
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


# Of the host with real guests, and required by the flavor of those.
GUEST_TRAIT = 'CUSTOM_CLOUDFN_GUESTS'


def flavors(demo):
    wait(NO)
    have = {f['name']: f['id'] for f in call('GET', NO + '/flavors', params={
        'is_public': 'None'})['flavors']}
    for fid, size, ram, disk, vcpus in (('1', 'TINY', 512, 1, 1), ('2', 'SMALL', 2048, 20, 1),
                                        ('3', 'MEDIUM', 4096, 40, 2), ('4', 'DEMO', 1024, 5, 1),
                                        ('5', 'GUEST', 768, 4, 1)):
        name = CFG['FLAVOR_' + size]
        if size == 'GUEST' and CFG['GUESTS'] == 'off':
            continue
        if name not in have:
            have[name] = call('POST', NO + '/flavors', {'flavor': {
                'name': name, 'ram': ram, 'disk': disk, 'vcpus': vcpus,
                'id': 'auto' if fid in have.values() else fid,
                'os-flavor-access:is_public': size != 'DEMO'}})['flavor']['id']
    if CFG['GUESTS'] == 'on':
        call('POST', '%s/flavors/%s/os-extra_specs' % (NO, have[CFG['FLAVOR_GUEST']]),
             {'extra_specs': {'trait:' + GUEST_TRAIT: 'required'}})
    url = '%s/flavors/%s/' % (NO, have[CFG['FLAVOR_DEMO']])
    if demo not in [a['tenant_id'] for a in call('GET', url + 'os-flavor-access')['flavor_access']]:
        call('POST', url + 'action', {'addTenantAccess': {'tenant': demo}})


def volume_types(project):
    if 'cinder' not in URL:
        return
    url = '%s/v3/%s/types' % (URL['cinder'], project)
    wait(URL['cinder'])
    have = {t['name'] for t in call('GET', url)['volume_types']}
    for name in (CFG['VOLUME_TYPE'], CFG['VOLUME_TYPE_OTHER']):
        if name not in have:
            call('POST', url, {'volume_type': {'name': name}})


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
    volume_types(projects['ADMIN'])
    networks(projects)


# ---- ready ------------------------------------------------------------------

def release():
    """Take the hosts out of the aggregate that an earlier version made. sandbox_scheduler.py keeps them empty."""
    for agg in call('GET', NO + '/os-aggregates')['aggregates']:
        if agg['name'] == 'sandbox-spare':
            url = '%s/os-aggregates/%s' % (NO, agg['id'])
            for host in agg['hosts']:
                call('POST', url + '/action', {'remove_host': {'host': host}})
            call('DELETE', url)


def guests():
    headers = {'OpenStack-API-Version': 'placement 1.6'}
    call('PUT', PL + '/traits/' + GUEST_TRAIT, headers=headers)
    found = call('GET', PL + '/resource_providers', params={'name': 'guests'})['resource_providers']
    url = '%s/resource_providers/%s/traits' % (PL, found[0]['uuid'])
    has = call('GET', url, headers=headers)
    if GUEST_TRAIT not in has['traits']:
        has['traits'].append(GUEST_TRAIT)
        call('PUT', url, has, headers=headers)


def clouds():
    rows = (('admin', 'ADMIN_USER', 'ADMIN_PROJECT', ''), ('demo', 'DEMO_USER', 'DEMO_PROJECT', ''),
            ('alt', 'ALT_USER', 'ALT_PROJECT', ''), ('reader', 'READER_USER', 'DEMO_PROJECT', ''),
            ('partner', 'PARTNER_USER', 'PARTNER_PROJECT', 'PARTNER_DOMAIN'),
            ('partner-admin', 'PARTNER_ADMIN_USER', 'PARTNER_PROJECT', 'PARTNER_DOMAIN'),
            ('collector', 'COLLECTOR_USER', 'COLLECTOR_PROJECT', ''),
            ('leases', 'LEASES_USER', 'COLLECTOR_PROJECT', ''), ('delegate', 'DELEGATE_USER', '', ''))
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
    for url in (*URL.values(), GL, NO):
        wait(url)
    login()
    computes = (CFG['COMPUTES'] + ' ' + CFG['RESERVABLE']).split()
    if CFG['GUESTS'] == 'on':
        computes.append('guests')
    consumers(['nova-conductor', 'nova-scheduler'] + ['nova-' + c for c in computes])
    hosts(set(computes))
    release()
    if CFG['GUESTS'] == 'on':
        guests()


if sys.argv[1] == 'consumers':
    consumers(sys.argv[2:])
else:
    {'identity': identity, 'resources': resources, 'ready': ready}[sys.argv[1]]()
