# shellcheck shell=bash
# The chains of sandbox up, one for each service: its schema first, then its processes.

once() { # once NAME KEY command... : run until it has succeeded one time with this KEY
  local name=$1 key=$2; shift 2
  [ -e "$STATE/done.$name-$key" ] && return 0
  "${IN[@]}" "$@" > "$LOG/init-$name.log" 2>&1 ||
    die "preparing $name failed ($(last_line "$LOG/init-$name.log")), see $LOG/init-$name.log"
  rm -f "$STATE/done.$name"-*; touch "$STATE/done.$name-$key"
  say "  $name ready"
}
schema() { # schema NAME KEY DATABASES command... : what an interrupted one has left is not worth keeping
  local name=$1-schema key=$2 d
  compgen -G "$STATE/done.$name-*" >/dev/null || for d in $3; do
    echo "DROP DATABASE IF EXISTS $d; CREATE DATABASE $d CHARACTER SET utf8mb3;"
  done | sql || die "MariaDB does not create the databases $3, see $LOG/mariadb.log"
  shift 3; once "$name" "$key" "$@"
}
chain_keystone() {
  schema keystone "$SIG" keystone "$PY" "$LIB/keystone_init.py" "$CONF/keystone/keystone.conf" \
    "$(url keystone)/v3" "$SANDBOX_REGION"
  launch keystone; serving keystone
  once identities "$SEED" "$PY" "$LIB/seed.py" identity
}
chain_placement() {
  schema placement 1 placement env OS_PLACEMENT_CONFIG_DIR="$CONF/placement" placement-manage \
    --config-file "$CONF/placement/placement.conf" db sync
  launch placement
}
chain_glance() {
  schema glance 1 glance "$PY" "$LIB/svc.py" glance-manage glance.cmd.manage:main \
    --config-file "$CONF/glance/glance-api.conf" db_sync
  launch glance
}
chain_neutron() {
  schema neutron 1 neutron "$PY" "$LIB/svc.py" neutron-db-manage neutron.db.migration.cli:main \
    --config-file "$CONF/neutron/neutron.conf" upgrade heads
  launch neutron-server
}
chain_nova() {
  schema nova 1 "nova nova_api nova_cell0" "$PY" "$LIB/nova_init.py" \
    --config-file "$CONF/nova/nova.conf" --config-file "$CONF/nova/db-cell1.conf"
  local n
  for n in nova-conductor nova-api; do launch $n; done
  serving rabbitmq   # the two cores have enough to do until then
  await keystone     # the scheduler dies without
  [ "$SANDBOX_GUESTS" = off ] || { launch libvirt; serving libvirt; }
  for n in nova-scheduler "${COMPUTES[@]}"; do launch "$n"; done
}
