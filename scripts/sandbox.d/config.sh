# shellcheck shell=bash
# Writes the configuration of every piece into the state folder, and copies there what the processes load.

database() { # database SECTION DATABASE [USER SOCKET]
  printf '[%s]\nconnection = mysql+pymysql://%s@localhost/%s?charset=utf8&unix_socket=%s\n' "$1" "${3:-root}" "$2" \
    "${4:-$SOCK}"
  printf 'max_pool_size = 10\nmax_overflow = 100\n'
}
auth() { # auth SECTION USER : how SECTION reaches Keystone
  cat <<C
[$1]
auth_type = password
auth_url = $(url keystone)/v3
username = $2
password = ${SANDBOX_PASSWORD//\$/\$\$}
project_name = service
user_domain_name = Default
project_domain_name = Default
region_name = $SANDBOX_REGION
C
}
authtoken() { # authtoken USER TYPE
  auth keystone_authtoken "$1"
  # Without its own type a service refuses application credentials with access rules.
  cat <<C
service_type = $2
www_authenticate_uri = $(url keystone)/v3
service_token_roles_required = true
service_token_roles = service
token_cache_time = 30
C
}
common() {
  cat <<C
[oslo_concurrency]
lock_path = $STATE/lock
[oslo_messaging_notifications]
driver = noop
[oslo_messaging_rabbit]
heartbeat_in_pthread = false
kombu_reconnect_delay = 0.5
rabbit_retry_interval = 1
rabbit_retry_backoff = 0
# The new defaults: a reader only reads (Zed's old defaults let it write).
[oslo_policy]
enforce_new_defaults = true
enforce_scope = $SANDBOX_ENFORCE_SCOPE
C
}

write_config() {
  mkdir -p "$CONF"/{keystone,glance,placement,nova,neutron} "$LIB/sandbox-1.0.dist-info" \
    "$STATE"/{lock,glance,nova,neutron}
  cp "$HERE"/lib/*.py "$LIB/"
  printf 'Metadata-Version: 2.1\nName: sandbox\nVersion: 1.0\n' > "$LIB/sandbox-1.0.dist-info/METADATA"
  cat > "$LIB/sandbox-1.0.dist-info/entry_points.txt" <<C
[neutron.ml2.mechanism_drivers]
sandbox = sandbox_ml2:SandboxMechanismDriver
[octavia.network.drivers]
sandbox = sandbox_octavia:NetworkDriver
[octavia.cert_generator]
sandbox = sandbox_octavia:CertGenerator
C
  local c d

  cat > "$CONF/my.cnf" <<C
[mysqld]
user = root
datadir = $DB
socket = $SOCK
pid-file = $RUN/mysqld.own-pid
skip-networking
skip-name-resolve
skip-log-bin
character-set-server = utf8mb3
collation-server = utf8mb3_general_ci
max_connections = 1000
performance_schema = OFF
innodb_buffer_pool_size = 192M
innodb_log_file_size = 64M
# Survives the death of the process; not that of the machine in every case.
innodb_flush_log_at_trx_commit = 2
innodb_doublewrite = 0
innodb_flush_method = nosync
innodb_stats_persistent = 0
key_buffer_size = 1M
aria_pagecache_buffer_size = 8M
C
  cat > "$CONF/init.sql" <<C
CREATE USER IF NOT EXISTS cell1@localhost;
GRANT ALL ON nova.* TO cell1@localhost;
C

  printf '[].\n' > "$CONF/rabbitmq_plugins"
  cat > "$CONF/rabbitmq.conf" <<C
listeners.tcp.1 = $SANDBOX_HOST:$SANDBOX_RABBIT_PORT
default_user = sandbox
default_pass = $RABBIT_PASSWORD
loopback_users = none
log.file = false
log.console = true
log.console.level = warning
vm_memory_high_watermark.relative = 0.2
C

  { echo "[DEFAULT]
use_stderr = true
[token]
provider = fernet
expiration = $SANDBOX_TOKEN_TTL
[fernet_tokens]
key_repository = $STATE/keystone/fernet
[fernet_receipts]
key_repository = $STATE/keystone/fernet
[credential]
key_repository = $STATE/keystone/credential
[identity]
password_hash_rounds = 4
max_password_length = 72
[cache]
enabled = true
backend = dogpile.cache.memory_pickle
expiration_time = 60
[oslo_middleware]
enable_proxy_headers_parsing = true"
    database database keystone; } > "$CONF/keystone/keystone.conf"

  { database placement_database placement; authtoken placement placement; } > "$CONF/placement/placement.conf"

  cp "$HERE/conf/glance-api-paste.ini" "$CONF/glance/"
  { echo "[DEFAULT]
bind_host = $SANDBOX_HOST
bind_port = $SANDBOX_GLANCE_PORT
workers = 0
enabled_backends = file:file
enabled_import_methods = [web-download,glance-direct]
show_image_direct_url = true
enforce_secure_rbac = true
[glance_store]
default_backend = file
[file]
filesystem_store_datadir = $STATE/glance/images
[os_glance_staging_store]
filesystem_store_datadir = $STATE/glance/staging
[os_glance_tasks_store]
filesystem_store_datadir = $STATE/glance/tasks
[paste_deploy]
flavor = keystone
config_file = $CONF/glance/glance-api-paste.ini"
    database database glance; authtoken glance image; common; } > "$CONF/glance/glance-api.conf"

  cp "$HERE/conf/neutron-api-paste.ini" "$CONF/neutron/api-paste.ini"
  { echo "[DEFAULT]
bind_host = $SANDBOX_HOST
bind_port = $SANDBOX_NEUTRON_PORT
core_plugin = ml2
service_plugins = router
api_paste_config = $CONF/neutron/api-paste.ini
wsgi_default_pool_size = 300
state_path = $STATE/neutron
transport_url = rabbit://sandbox:$RABBIT_PASSWORD@$SANDBOX_HOST:$SANDBOX_RABBIT_PORT//
dhcp_agent_notification = false
notify_nova_on_port_status_changes = true
notify_nova_on_port_data_changes = true
graceful_shutdown_timeout = 2
[ml2]
type_drivers = flat,vlan,vxlan,local
tenant_network_types = vxlan
mechanism_drivers = sandbox
extension_drivers = port_security
[ml2_type_flat]
flat_networks = *
[ml2_type_vlan]
network_vlan_ranges = physnet1:100:999
[ml2_type_vxlan]
vni_ranges = 1:5000
[securitygroup]
enable_security_group = true
[quotas]
quota_port = $SANDBOX_QUOTA
quota_network = $SANDBOX_QUOTA_NETWORKS
quota_subnet = $SANDBOX_QUOTA_NETWORKS
[agent]
root_helper ="
    auth nova nova; authtoken neutron network; database database neutron; common; } > "$CONF/neutron/neutron.conf"

  cp "$HERE/conf/nova-api-paste.ini" "$CONF/nova/api-paste.ini"
  local filters=UnreservedHostsFilter,ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter
  filters+=,ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter,AggregateInstanceExtraSpecsFilter
  filters+=,AggregateMultiTenancyIsolation,DifferentHostFilter,SameHostFilter
  { echo "[DEFAULT]
my_ip = $SANDBOX_HOST
state_path = $STATE/nova
instances_path = $STATE/nova/instances
transport_url = rabbit://sandbox:$RABBIT_PASSWORD@$SANDBOX_HOST:$SANDBOX_RABBIT_PORT//
compute_driver = $SANDBOX_DRIVER
enabled_apis = osapi_compute
osapi_compute_listen = $SANDBOX_HOST
osapi_compute_listen_port = $SANDBOX_NOVA_PORT
osapi_compute_workers = 1
allow_resize_to_same_host = true
shelved_offload_time = 0
max_concurrent_builds = 5
initial_cpu_allocation_ratio = 16.0
initial_ram_allocation_ratio = 1.5
resume_guests_state_on_host_boot = false
graceful_shutdown_timeout = 2
report_interval = 10
periodic_fuzzy_delay = 0
service_down_time = $SANDBOX_SERVICE_DOWN_TIME
sync_power_state_interval = -1
heal_instance_info_cache_interval = -1
bandwidth_poll_interval = -1
vif_plugging_is_fatal = false
vif_plugging_timeout = 0
block_device_allocate_retries_interval = 1
[wsgi]
api_paste_config = $CONF/nova/api-paste.ini
[api]
auth_strategy = keystone
max_limit = 1000
[conductor]
workers = 1
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 3
# Lets an aggregate refuse every flavor that does not require its traits.
enable_isolated_aggregate_filtering = true
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = sandbox_scheduler.UnreservedHostsFilter
isolated_hosts = ${SANDBOX_RESERVABLE// /,},$GUEST_HOST
enabled_filters = $filters
track_instance_changes = false
[quota]
instances = $SANDBOX_QUOTA
cores = $SANDBOX_QUOTA_CORES
ram = $SANDBOX_QUOTA_RAM
[glance]
api_servers = $(url glance)
[vnc]
enabled = false
[notifications]
notification_format = unversioned"
    auth neutron nova; auth placement nova; auth service_user nova; echo "send_service_user_token = true"
    auth cinder nova; echo "os_region_name = $SANDBOX_REGION
catalog_info = volumev3::internalURL"
    authtoken nova compute; common; } > "$CONF/nova/nova.conf"
  # nova-compute must see neither: it would try, and fail, to read the cells.
  { database api_database nova_api; database database nova_cell0; } > "$CONF/nova/db-cell0.conf"
  { database api_database nova_api; database database nova cell1 "$RUN/cell1.sock"; } > "$CONF/nova/db-cell1.conf"
  for c in "${COMPUTES[@]#nova-}"; do
    d=$STATE/nova/$c; mkdir -p "$d/instances"
    printf '[DEFAULT]\nhost = %s\nstate_path = %s\ninstances_path = %s/instances\n' "$c" "$d" "$d" \
      > "$CONF/nova/$c.conf"
  done
  write_guests
  for c in "${OPTIONAL[@]}"; do "write_$c"; done
}

rewrite_config() { # write_config, and stop what runs with another configuration: it is read only at the start
  local n
  local -A before=() reads=([nova-scheduler]=nova/nova.conf [barbican]=barbican/barbican.conf
    [octavia-api]=octavia/octavia.conf [octavia-worker]=octavia/octavia.conf)
  for n in "${!reads[@]}"; do before[$n]=$(cksum "$CONF/${reads[$n]}" 2>/dev/null); done
  write_config
  for n in "${!reads[@]}"; do
    [ "${before[$n]}" = "$(cksum "$CONF/${reads[$n]}" 2>/dev/null)" ] || stop_pieces "$n"
  done
}
