"""nova-compute with the libvirt driver, whose guests run in another network namespace than itself.

libvirtd makes the tap device of each guest there, and puts it into the bridge. So there is nothing to plug here.
"""
import sandbox_compute  # first: it patches what eventlet must patch

import nova.privsep
import os_vif
import vif_plug_linux_bridge.privsep


def main():
    # This process is root's: what needs privileges runs in it, and not in a daemon that sudo starts.
    for context in (nova.privsep.sys_admin_pctxt, vif_plug_linux_bridge.privsep.vif_plug):
        context.set_client_mode(False)
    os_vif.plug = os_vif.unplug = lambda vif, instance_info: None
    return sandbox_compute.main()
