# shellcheck shell=bash
# The services that a setting leaves out (SANDBOX_VOLUMES, SANDBOX_LOADBALANCERS, SANDBOX_KEYS): their configuration,
# how their processes are started, and their chains of sandbox up.

bus() { echo "transport_url = rabbit://sandbox:$RABBIT_PASSWORD@$SANDBOX_HOST:$SANDBOX_RABBIT_PORT//"; }

# ---- Cinder ----------------------------------------------------------------

write_cinder() {
  mkdir -p "$CONF/cinder" "$STATE/cinder"
  cp "$HERE/conf/cinder-api-paste.ini" "$CONF/cinder/api-paste.ini"
  cp "$HERE/conf/cinder-resource-filters.json" "$CONF/cinder/resource_filters.json"
  { echo "[DEFAULT]
my_ip = $SANDBOX_HOST
host = sandbox
$(bus)
state_path = $STATE/cinder
api_paste_config = $CONF/cinder/api-paste.ini
resource_query_filters_file = $CONF/cinder/resource_filters.json
enabled_backends = fake
default_volume_type = $SANDBOX_VOLUME_TYPE
glance_api_servers = $(url glance)
allowed_direct_url_schemes = file
quota_volumes = $SANDBOX_QUOTA
quota_snapshots = $SANDBOX_QUOTA
quota_gigabytes = $SANDBOX_QUOTA_DISK
report_interval = 10
periodic_interval = 10
periodic_fuzzy_delay = 0
service_down_time = $SANDBOX_SERVICE_DOWN_TIME
graceful_shutdown_timeout = 2
[fake]
volume_driver = sandbox_volume.Driver
volume_backend_name = fake
target_helper = fake
[coordination]
backend_url = file://$STATE/cinder/coordination"
    database database cinder; auth nova cinder; auth service_user cinder; echo "send_service_user_token = true"
    authtoken cinder volumev3; common; } > "$CONF/cinder/cinder.conf"
}
chain_cinder() {
  schema cinder 1 cinder "$PY" "$LIB/svc.py" cinder-manage cinder.cmd.manage:main \
    --config-file "$CONF/cinder/cinder.conf" db sync
  launch cinder-api
  serving rabbitmq
  launch cinder-scheduler; launch cinder-volume
}

# ---- Octavia ---------------------------------------------------------------

write_octavia() {
  mkdir -p "$CONF/octavia"
  rm -f "$CONF/octavia/policy.yaml"   # of an earlier version
  { echo "[DEFAULT]
host = sandbox
$(bus)
[api_settings]
bind_host = $SANDBOX_HOST
bind_port = $SANDBOX_OCTAVIA_PORT
enabled_provider_drivers = amphora:The amphorae of this sandbox are no-ops.,octavia:Another name of amphora.
default_provider_driver = amphora
[oslo_messaging]
topic = octavia_prov
[controller_worker]
amphora_driver = amphora_noop_driver
compute_driver = compute_noop_driver
image_driver = image_noop_driver
volume_driver = volume_noop_driver
network_driver = sandbox
client_ca = /dev/null
[certificates]
cert_generator = sandbox
[task_flow]
engine = serial
[health_manager]
heartbeat_key = none
[neutron]
region_name = $SANDBOX_REGION
endpoint_type = internal"
    # Its own policies: load-balancer_member besides member. Of its old defaults admin is one; the new have none.
    database database octavia; auth service_auth octavia; authtoken octavia load-balancer; common; } \
    > "$CONF/octavia/octavia.conf"
}
chain_octavia() {
  schema octavia 1 octavia "$PY" "$LIB/svc.py" octavia-db-manage octavia.db.migration.cli:main \
    --config-file "$CONF/octavia/octavia.conf" upgrade head
  launch octavia-api
  serving rabbitmq
  launch octavia-worker
}

# ---- Barbican --------------------------------------------------------------

write_barbican() {
  mkdir -p "$CONF/barbican"
  cp "$HERE/conf/barbican-api-paste.ini" "$CONF/barbican/"
  { echo "[DEFAULT]
host_href =
sql_connection = mysql+pymysql://root@localhost/barbican?charset=utf8&unix_socket=$SOCK
db_auto_create = false
[secretstore]
enabled_secretstore_plugins = store_crypto
[crypto]
enabled_crypto_plugins = simple_crypto"
    # Its own policies, which are the old defaults: creator, whatever other role its user has.
    authtoken barbican key-manager; common | sed 's/^enforce_new_defaults = .*/enforce_new_defaults = false/'; } \
    > "$CONF/barbican/barbican.conf"
}
chain_barbican() {
  schema barbican 1 barbican env HOME="$CONF/barbican" "$PY" "$LIB/svc.py" barbican-db-manage \
    barbican.cmd.db_manage:main upgrade
  launch barbican
}

# ---- how each piece is started ---------------------------------------------

launch_optional() {
  local config=(--config-file "$CONF/${1%%-*}/${1%%-*}.conf")
  case $1 in
    cinder-api) spawn "$1" "$PY" "$LIB/sandbox_wsgi.py" \
      cinder.wsgi.wsgi:initialize_application "$SANDBOX_HOST" "$SANDBOX_CINDER_PORT" 6 "${config[@]}" ;;
    cinder-scheduler) service "$1" cinder.cmd.scheduler:main "${config[@]}" ;;
    cinder-volume) service "$1" sandbox_volume:main "${config[@]}" ;;
    octavia-api) spawn "$1" "$PY" "$LIB/sandbox_wsgi.py" \
      octavia.api.app:setup_app "$SANDBOX_HOST" "$SANDBOX_OCTAVIA_PORT" 6 "${config[@]}" ;;
    octavia-worker) service "$1" sandbox_octavia:worker "${config[@]}" ;;
    # Each of its modules looks for barbican.conf separately, first in the home.
    barbican) HOME=$CONF/barbican spawn "$1" "$PY" "$LIB/sandbox_wsgi.py" \
      sandbox_barbican:application "$SANDBOX_HOST" "$SANDBOX_BARBICAN_PORT" 4 ;;
  esac
}
