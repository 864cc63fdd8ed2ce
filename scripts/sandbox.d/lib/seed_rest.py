"""The REST calls of seed.py, as the admin."""
import os
import sys
import time

import requests

STATE = os.getcwd()
CFG = {k[8:]: v for k, v in os.environ.items() if k.startswith('SANDBOX_')}
URL = {s: 'http://%s:%s' % (CFG['HOST'], CFG[s.upper() + '_PORT'])
       for s in ('keystone', 'glance', 'placement', 'nova', 'neutron', *CFG['OPTIONAL'].split())}
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
    """Request a token; the response, whatever it is."""
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
    return r.json() if r.content and 'json' in r.headers.get('Content-Type', '') else None


def ensure(url, one, match, extra=None, many=None):
    """The one that GET url?match finds, else what POST url makes."""
    for found in call('GET', url, params=match)[many or one + 's']:
        if all(found.get(k) == v for k, v in match.items()):
            return found
    return call('POST', url, {one: dict(match, **(extra or {}))})[one]
