"""keystone-manage db_sync; fernet_setup; credential_setup; bootstrap,
in one process.  keystone_init.py F URL REGION"""
import base64
import os
import sys

from keystone.common import provider_api
from keystone.common import sql
import keystone.conf
from keystone.common.sql import upgrades
from keystone.cmd import bootstrap
from keystone import exception

conf_file, url, region = sys.argv[1:4]
CONF = keystone.conf.CONF
keystone.conf.configure()
sql.initialize()
keystone.conf.set_default_for_default_log_levels()
CONF(args=['--config-file', conf_file], project='keystone',
     prog='keystone-manage', usage='')
keystone.conf.setup_logging()

for section in ('fernet_tokens', 'fernet_receipts', 'credential'):
    repo = CONF[section].key_repository
    os.makedirs(repo, mode=0o700, exist_ok=True)
    for key in ('0', '1'):
        path = os.path.join(repo, key)
        if not os.path.exists(path):
            with open(path, 'wb') as f:
                f.write(base64.urlsafe_b64encode(os.urandom(32)))
            os.chmod(path, 0o600)

upgrades.offline_sync_database_to_version(None)

b = bootstrap.Bootstrapper()
b.admin_username = os.environ['SANDBOX_ADMIN_USER']
b.admin_password = os.environ['SANDBOX_PASSWORD']
b.project_name = os.environ['SANDBOX_ADMIN_PROJECT']
b.admin_role_name = 'admin'
b.service_name = 'keystone'
b.admin_url = b.public_url = b.internal_url = url
b.region_id = region
b.immutable_roles = True
b.bootstrap()

# A user whose id is known beforehand: knative/overlays/local names it, and over REST Keystone would choose one.
identity = provider_api.ProviderAPIs.identity_api
name, user_id = os.environ['SANDBOX_DELEGATE_USER'], os.environ['SANDBOX_DELEGATE_ID']
try:
    identity.get_user_by_name(name, 'default')
except exception.UserNotFound:
    identity.driver.create_user(user_id, {
        'id': user_id, 'name': name, 'domain_id': 'default', 'enabled': True,
        'password': os.environ['SANDBOX_PASSWORD']})
