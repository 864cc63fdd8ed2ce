"""Prints how openstacksdk and keystoneauth read each case of the files beside it, as JSON.

It uses the class that `openstack configuration show` uses, and the plugin that `openstack token issue` logs in with. It
does not use openstackclient's options, which let OS_REGION_NAME and the like go before a cloud of clouds.yaml, and pass
over OS_ENDPOINT_TYPE. In all other cases that command shows the same.
"""
import glob
import importlib
import json
import os
import shutil
import sys
import tempfile
import warnings

import keystoneauth1.identity.generic
import openstack.config.loader
import osc_lib.cli.client_config
import yaml

SERVICES = {
    "compute": "compute", "network": "network", "image": "image", "placement": "placement",
    "block_storage": "block-storage", "load_balancer": "load-balancer", "key_manager": "key-manager",
}


def scope(plugin):
    """The scope that keystoneauth1.identity.v3.base.Auth sends."""
    kinds = [plugin.trust_id, plugin.system_scope, plugin.project_id or plugin.project_name,
             plugin.domain_id or plugin.domain_name]
    if sum(bool(kind) for kind in kinds) > 1:
        raise ValueError("several scopes")
    domain = {"id": plugin.project_domain_id} if plugin.project_domain_id else {"name": plugin.project_domain_name}
    if plugin.trust_id:
        return {"OS-TRUST:trust": {"id": plugin.trust_id}}
    if plugin.system_scope:
        return {"system": {"all": True}}
    if plugin.project_id:
        return {"project": {"id": plugin.project_id}}
    if plugin.project_name:
        return {"project": {"name": plugin.project_name, "domain": domain}}
    if plugin.domain_id:
        return {"domain": {"id": plugin.domain_id}}
    if plugin.domain_name:
        return {"domain": {"name": plugin.domain_name}}
    return None


def login(plugin):
    if isinstance(plugin, keystoneauth1.identity.generic.base.BaseGenericPlugin):
        plugin = plugin.create_plugin(None, (3, 0), plugin.auth_url)
    name, data = plugin.auth_methods[0].get_auth_data(None, plugin, {})
    auth = {"identity": {"methods": [name], name: data}}
    if name != "application_credential" and scope(plugin):
        auth["scope"] = scope(plugin)
    return auth


def read(case, folder):
    for path, text in case.get("files", {}).items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
            file.write(text)
    for name in [name for name in os.environ if name.startswith("OS_")]:
        del os.environ[name]
    os.environ.update({name: str(value).replace("HOME", folder) for name, value in case["env"].items()})
    os.environ.update(HOME=folder, XDG_CONFIG_HOME=folder)
    os.chdir(folder)
    importlib.reload(openstack.config.loader)
    importlib.reload(osc_lib.cli.client_config)
    reader = osc_lib.cli.client_config.OSC_Config(override_defaults={"interface": None, "auth_type": None})
    region = reader.get_one(validate=False, default_domain="default")
    verify, cert = region.get_requests_verify_args()
    cert, key = cert if isinstance(cert, tuple) else (cert, None)
    overrides = {name: region.get_endpoint(service) for name, service in SERVICES.items()}
    plugin = reader.load_auth_plugin(region.config)
    out = {
        "auth_url": plugin.auth_url, "region": region.region_name, "cacert": verify if isinstance(verify, str) else "",
        "interface": (region.get_interface() or "public").replace("URL", ""), "cert": cert, "key": key,
        "insecure": verify is False, "overrides": {name: at for name, at in overrides.items() if at},
        "login": login(plugin),
    }
    text = json.dumps({name: value for name, value in out.items() if value})
    return json.loads(text.replace(folder, "HOME"))


def main():
    warnings.simplefilter("ignore")
    cases, out = {}, {}
    for path in glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "*.yaml")):
        with open(path, encoding="utf-8") as file:
            cases.update(yaml.safe_load(file))
    for name, case in cases.items():
        folder = tempfile.mkdtemp()
        try:
            out[name] = read(case, folder)
        except Exception as error:  # pylint: disable=broad-except
            out[name] = {"error": f"{type(error).__name__}: {error}"}
        finally:
            os.chdir("/")
            shutil.rmtree(folder)
    json.dump(out, sys.stdout)


main()
