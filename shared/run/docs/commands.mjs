// Made from cmd/cloudfn by `make generate`: the commands of each operation.
export default {
  "actOnServer": [
    "cloudfn servers rename SERVER NAME",
    "cloudfn servers rebuild SERVER",
    "cloudfn servers deploy SERVER --image REF --confirm-rebuild [-- ARG...]",
    "cloudfn servers confirm-resize SERVER...",
    "cloudfn servers delete SERVER...",
    "cloudfn servers lock SERVER...",
    "cloudfn servers pause SERVER...",
    "cloudfn servers reboot SERVER...",
    "cloudfn servers rescue SERVER...",
    "cloudfn servers resize SERVER...",
    "cloudfn servers resume SERVER...",
    "cloudfn servers revert-resize SERVER...",
    "cloudfn servers shelve SERVER...",
    "cloudfn servers snapshot SERVER...",
    "cloudfn servers start SERVER...",
    "cloudfn servers stop SERVER...",
    "cloudfn servers suspend SERVER...",
    "cloudfn servers unlock SERVER...",
    "cloudfn servers unpause SERVER...",
    "cloudfn servers unrescue SERVER...",
    "cloudfn servers unshelve SERVER..."
  ],
  "actOnServers": [
    "cloudfn servers confirm-resize SERVER...",
    "cloudfn servers delete SERVER...",
    "cloudfn servers lock SERVER...",
    "cloudfn servers pause SERVER...",
    "cloudfn servers reboot SERVER...",
    "cloudfn servers rescue SERVER...",
    "cloudfn servers resize SERVER...",
    "cloudfn servers resume SERVER...",
    "cloudfn servers revert-resize SERVER...",
    "cloudfn servers shelve SERVER...",
    "cloudfn servers snapshot SERVER...",
    "cloudfn servers start SERVER...",
    "cloudfn servers stop SERVER...",
    "cloudfn servers suspend SERVER...",
    "cloudfn servers unlock SERVER...",
    "cloudfn servers unpause SERVER...",
    "cloudfn servers unrescue SERVER...",
    "cloudfn servers unshelve SERVER..."
  ],
  "addSecurityGroup": [
    "cloudfn servers add-security-group SERVER SECURITY-GROUP"
  ],
  "addSecurityGroupRule": [
    "cloudfn security-groups add-rule SECURITY-GROUP"
  ],
  "attachFloatingIP": [
    "cloudfn servers attach-ip SERVER [FLOATING_IP]"
  ],
  "attachInterface": [
    "cloudfn servers add-interface SERVER"
  ],
  "attachVolume": [
    "cloudfn servers attach SERVER VOLUME"
  ],
  "cancelDrain": [
    "cloudfn nodes cancel-drain NODE"
  ],
  "changeCallback": [
    "cloudfn callbacks update CALLBACK"
  ],
  "changeConnection": [
    "cloudfn connections update CONNECTION"
  ],
  "changeLease": [
    "cloudfn leases extend LEASE",
    "cloudfn leases update LEASE"
  ],
  "changeNode": [
    "cloudfn nodes label NODE KEY=VALUE... KEY-...",
    "cloudfn nodes update NODE"
  ],
  "changeServer": [
    "cloudfn servers reusable SERVER",
    "cloudfn servers set SERVER",
    "cloudfn servers unset SERVER"
  ],
  "checkConnection": [
    "cloudfn connections check CONNECTION"
  ],
  "connectServer": [
    "cloudfn servers connect SERVER"
  ],
  "cordonNode": [
    "cloudfn nodes cordon NODE"
  ],
  "createCallback": [
    "cloudfn callbacks create URL",
    "cloudfn callbacks listen"
  ],
  "createConnection": [
    "cloudfn connections create --kind KIND --actions ACTIONS --expires WHEN"
  ],
  "createFlavor": [
    "cloudfn flavors create NAME --kind KIND [--set FIELD=VALUE]..."
  ],
  "createFloatingIP": [
    "cloudfn floating-ips create"
  ],
  "createKeyPair": [
    "cloudfn keypairs create NAME"
  ],
  "createLease": [
    "cloudfn leases create NAME (--hosts N | --instance SERVER [--volume VOLUME]) (--end WHEN | --duration TIME)"
  ],
  "createNodeToken": [
    "cloudfn nodes token NODE"
  ],
  "createSecurityGroup": [
    "cloudfn security-groups create NAME"
  ],
  "createVolume": [
    "cloudfn volumes create [NAME]"
  ],
  "declineConnectionRequest": [
    "cloudfn connections requests decline REQUEST"
  ],
  "deleteCallback": [
    "cloudfn callbacks delete CALLBACK...",
    "cloudfn callbacks listen"
  ],
  "deleteConnection": [
    "cloudfn connections delete CONNECTION..."
  ],
  "deleteFlavor": [
    "cloudfn flavors delete FLAVOR..."
  ],
  "deleteFloatingIP": [
    "cloudfn floating-ips delete FLOATING_IP..."
  ],
  "deleteKeyPair": [
    "cloudfn keypairs delete KEYPAIR..."
  ],
  "deleteLease": [
    "cloudfn leases end LEASE"
  ],
  "deleteManaged": [
    "cloudfn managed delete (KIND NAME... | KIND/NAME...)",
    "cloudfn apply --file FILE"
  ],
  "deleteNode": [
    "cloudfn nodes delete NODE..."
  ],
  "deleteSecurityGroup": [
    "cloudfn security-groups delete SECURITY-GROUP..."
  ],
  "deleteServer": [
    "cloudfn servers disconnect SERVER"
  ],
  "deleteVolume": [
    "cloudfn volumes delete VOLUME..."
  ],
  "detachFloatingIP": [
    "cloudfn servers detach-ip SERVER FLOATING_IP"
  ],
  "detachInterface": [
    "cloudfn servers remove-interface SERVER PORT"
  ],
  "detachVolume": [
    "cloudfn servers detach SERVER VOLUME"
  ],
  "diffManaged": [
    "cloudfn managed diff KIND NAME [FROM [TO]]"
  ],
  "drainNode": [
    "cloudfn nodes drain NODE"
  ],
  "findFreeHosts": [
    "cloudfn leases availability --duration TIME"
  ],
  "getCallback": [
    "cloudfn callbacks show CALLBACK"
  ],
  "getConnection": [
    "cloudfn connections show CONNECTION"
  ],
  "getConnectionRequest": [
    "cloudfn connections requests show REQUEST"
  ],
  "getDelivery": [
    "cloudfn callbacks delivery CALLBACK DELIVERY"
  ],
  "getFlavor": [
    "cloudfn flavors show FLAVOR"
  ],
  "getFloatingIP": [
    "cloudfn floating-ips show FLOATING_IP"
  ],
  "getLease": [
    "cloudfn leases show LEASE"
  ],
  "getManaged": [
    "cloudfn managed show KIND NAME"
  ],
  "getManagedRevision": [
    "cloudfn managed revisions KIND NAME [REVISION]"
  ],
  "getNode": [
    "cloudfn nodes show NODE"
  ],
  "getOrder": [
    "cloudfn orders show ORDER"
  ],
  "getSecurityGroup": [
    "cloudfn security-groups rules SECURITY-GROUP",
    "cloudfn security-groups show SECURITY-GROUP"
  ],
  "getServer": [
    "cloudfn servers show SERVER"
  ],
  "getServerAction": [
    "cloudfn servers action ID --connection ID"
  ],
  "getServerConsole": [
    "cloudfn servers console SERVER"
  ],
  "getServerHistory": [
    "cloudfn servers history SERVER"
  ],
  "getStats": [
    "cloudfn stats"
  ],
  "getStatus": [
    "cloudfn status"
  ],
  "getVolume": [
    "cloudfn volumes show VOLUME"
  ],
  "grantConnectionRequest": [
    "cloudfn connections requests grant REQUEST"
  ],
  "launch": [
    "cloudfn launch NAME --flavor FLAVOR --image IMAGE"
  ],
  "listAllocations": [
    "cloudfn leases allocations"
  ],
  "listCallbacks": [
    "cloudfn callbacks list"
  ],
  "listConnectionRequests": [
    "cloudfn connections requests list"
  ],
  "listConnections": [
    "cloudfn connections list"
  ],
  "listDeliveries": [
    "cloudfn callbacks deliveries CALLBACK"
  ],
  "listFlavors": [
    "cloudfn flavors list",
    "cloudfn get flavors"
  ],
  "listFloatingIPs": [
    "cloudfn floating-ips list"
  ],
  "listLeases": [
    "cloudfn leases list"
  ],
  "listManaged": [
    "cloudfn managed list [KIND]"
  ],
  "listManagedOfKind": [
    "cloudfn managed list [KIND]"
  ],
  "listManagedRevisions": [
    "cloudfn managed revisions KIND NAME [REVISION]"
  ],
  "listNodeServers": [
    "cloudfn nodes servers NODE"
  ],
  "listNodes": [
    "cloudfn nodes list"
  ],
  "listOrders": [
    "cloudfn orders list"
  ],
  "listProviders": [
    "cloudfn managed providers"
  ],
  "listRequests": [
    "cloudfn requests",
    "cloudfn requests export"
  ],
  "listResources": [
    "cloudfn keypairs list",
    "cloudfn resources [KIND...]"
  ],
  "listSecurityGroups": [
    "cloudfn security-groups list"
  ],
  "listServerFloatingIPs": [
    "cloudfn servers floating-ips SERVER"
  ],
  "listServerInterfaces": [
    "cloudfn servers interfaces SERVER"
  ],
  "listServerSecurityGroups": [
    "cloudfn servers security-groups SERVER"
  ],
  "listServerVolumes": [
    "cloudfn servers volumes SERVER"
  ],
  "listServers": [
    "cloudfn servers list"
  ],
  "listVolumes": [
    "cloudfn volumes list"
  ],
  "makeNodeReservable": [
    "cloudfn nodes reservable NODE"
  ],
  "makeNodeUnreservable": [
    "cloudfn nodes unreservable NODE"
  ],
  "openServerConsole": [
    "cloudfn servers console SERVER"
  ],
  "putFlavor": [
    "cloudfn flavors update FLAVOR",
    "cloudfn diff --file FILE",
    "cloudfn apply --file FILE"
  ],
  "putManaged": [
    "cloudfn managed put (KIND NAME [--set FIELD=VALUE]... | --file FILE)",
    "cloudfn managed scale KIND NAME COUNT",
    "cloudfn managed update KIND NAME [--set FIELD=VALUE]...",
    "cloudfn diff --file FILE",
    "cloudfn apply --file FILE"
  ],
  "redeliver": [
    "cloudfn callbacks redeliver CALLBACK DELIVERY..."
  ],
  "releaseLease": [
    "cloudfn leases release LEASE"
  ],
  "removeSecurityGroup": [
    "cloudfn servers remove-security-group SERVER SECURITY-GROUP"
  ],
  "removeSecurityGroupRule": [
    "cloudfn security-groups remove-rule SECURITY-GROUP RULE"
  ],
  "requestConnection": [
    "cloudfn connections requests create --project PROJECT_ID --why TEXT --actions ACTIONS --expires WHEN"
  ],
  "resumeConnection": [
    "cloudfn connections resume CONNECTION"
  ],
  "retryLease": [
    "cloudfn leases retry LEASE"
  ],
  "revokeNodeToken": [
    "cloudfn nodes token NODE"
  ],
  "rollbackManaged": [
    "cloudfn managed rollback KIND NAME REVISION"
  ],
  "rotateCallbackSecret": [
    "cloudfn callbacks rotate-secret CALLBACK"
  ],
  "suggestAccessRules": [
    "cloudfn connections access-rules"
  ],
  "suspendConnection": [
    "cloudfn connections suspend CONNECTION"
  ],
  "testCallback": [
    "cloudfn callbacks test CALLBACK"
  ],
  "testNode": [
    "cloudfn nodes self-test [NODE]"
  ],
  "uncordonNode": [
    "cloudfn nodes uncordon NODE"
  ],
  "withdrawConnectionRequest": [
    "cloudfn connections requests withdraw REQUEST..."
  ]
}
