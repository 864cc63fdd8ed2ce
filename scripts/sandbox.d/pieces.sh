# shellcheck shell=bash disable=SC2034
# The processes of the sandbox: what there is, how each is started, checked, and stopped.
# A signal goes only to a process that was started here: its pid file holds its pid, start time and boot.

pieces() {
  local c
  read -ra COMPUTES <<<"$SANDBOX_COMPUTES $SANDBOX_RESERVABLE"; COMPUTES=("${COMPUTES[@]/#/nova-}")
  NAMES=(
    mariadb epmd rabbitmq keystone placement glance neutron-server nova-api nova-conductor nova-scheduler
    "${COMPUTES[@]}"
  )
  OPTIONAL=() OPTIONAL_PIECES=() OPTIONAL_PACKAGES=
  declare -gA PORTS=([epmd]=$SANDBOX_EPMD_PORT [rabbitmq]="$SANDBOX_RABBIT_PORT $SANDBOX_RABBIT_DIST_PORT"
    [keystone]=$SANDBOX_KEYSTONE_PORT [placement]=$SANDBOX_PLACEMENT_PORT [glance]=$SANDBOX_GLANCE_PORT
    [nova-api]=$SANDBOX_NOVA_PORT [neutron-server]=$SANDBOX_NEUTRON_PORT)
  optional "$SANDBOX_VOLUMES" cinder "$SANDBOX_CINDER_PORT" cinder-api cinder-scheduler cinder-volume
  optional "$SANDBOX_LOADBALANCERS" octavia "$SANDBOX_OCTAVIA_PORT" octavia-api octavia-worker
  optional "$SANDBOX_KEYS" barbican "$SANDBOX_BARBICAN_PORT" barbican
  NAMES+=("${OPTIONAL_PIECES[@]}")
  guest_pieces
  export SANDBOX_OPTIONAL="${OPTIONAL[*]}"
  declare -gA PORT_SETTING=()
  for c in "${SETTING_NAMES[@]}"; do case $c in *_PORT) PORT_SETTING[${!c}]=$c ;; esac; done
  # No one types this one, and the other may hold any character.
  RABBIT_PASSWORD=$(printf %s "$SANDBOX_PASSWORD" | md5sum | cut -c1-32)
  export SANDBOX_AMQP=$SANDBOX_HOST:$SANDBOX_RABBIT_PORT:$RABBIT_PASSWORD
}
optional() { # optional SWITCH SERVICE PORT PIECE... : the first piece serves the API
  local switch=$1 service=$2 port=$3; shift 3
  case $switch in
    on) OPTIONAL+=("$service") OPTIONAL_PIECES+=("$@") OPTIONAL_PACKAGES+=" python3-$service" PORTS[$1]=$port ;;
    off) ;;
    *) die "the switch of $service is '$switch': it must be on or off" ;;
  esac
}
url() { echo "http://$SANDBOX_HOST:${PORTS[$1]}"; }
last_line() { grep -av '^[[:space:]]*$' "$1" 2>/dev/null | tail -1 | cut -c1-300; }

# ---- pid files -------------------------------------------------------------

started_at() { # start time of a pid, in ticks since boot
  local st; { st=$(</proc/"$1"/stat); } 2>/dev/null || return 1
  # shellcheck disable=SC2086
  set -- ${st##*) }
  case $1 in [ZX]) return 1 ;; esac   # dead, and not yet reaped
  echo "${20}-$(</proc/sys/kernel/random/boot_id)"
}
alive() {
  local pid start
  { read -r pid start < "$RUN/$1.pid"; } 2>/dev/null || return 1
  [ "$(started_at "$pid")" = "$start" ]
}
spawn() { # spawn NAME command... : own session, own log, pid file
  local name=$1 pid; shift
  alive "$name" && return 0
  setsid "${IN[@]}" "$@" >>"$LOG/$name.log" 2>&1 </dev/null 9>&- &
  pid=$!
  echo "$pid $(started_at $pid)" > "$RUN/$name.pid"
}
stop_pieces() { # end all, wait, then kill what is left; with STOP=kill, kill them
  local n pid i tenths=20 left=()
  [ -z "${STOP:-}" ] || tenths=0
  for n; do
    alive "$n" || continue
    read -r pid _ < "$RUN/$n.pid"; left+=("$n")
    case $n in
      # The one is slow to leave, and keeps nothing; the other is a host that loses its power.
      rabbitmq | libvirt) kill -KILL -- "-$pid" ;;
      mariadb) [ $tenths = 0 ] || tenths=300; kill -TERM "$pid" ;;
      *) kill -TERM "$pid" ;;
    esac 2>/dev/null
  done
  for ((i = 0; i < tenths && ${#left[@]}; i++)); do
    sleep 0.1
    for n in "${!left[@]}"; do alive "${left[n]}" || unset "left[n]"; done
  done
  for n in "${left[@]}"; do
    read -r pid _ < "$RUN/$n.pid"
    kill -KILL -- "-$pid" 2>/dev/null   # its own session, so its own group
  done
  for n; do
    while alive "$n"; do sleep 0.05; done   # a killed one holds its ports a little longer
    rm -f "$RUN/$n.pid"
  done
}

# ---- ready or not ----------------------------------------------------------

listening() { # listening NAME PORT
  local host=$SANDBOX_HOST
  case $2 in "$SANDBOX_EPMD_PORT" | "$SANDBOX_RABBIT_DIST_PORT") host=127.0.0.1 ;; esac
  (exec 3<>"/dev/tcp/$host/$2") 2>/dev/null
}
ports_free() { # a port of a piece that is not up must be free
  local n port
  for n; do
    alive "$n" && continue
    for port in ${PORTS[$n]:-}; do
      ! listening "$n" "$port" ||
        die "port $port ($n) is held by another process, stop that or set ${PORT_SETTING[$port]} to a free port"
    done
  done
}
sql() { "${IN[@]}" mariadb --no-defaults -S "$SOCK" -u root "$@"; }
seed() { # run seed.py; its last line says what went wrong
  local out
  out=$("${IN[@]}" "$PY" "$LIB/seed.py" "$@" 2>&1) ||
    die "${out##*$'\n'} ('sandbox status' shows the pieces, $LOG has their logs)"
}
serves() {
  case $1 in
    mariadb) [ -S "$SOCK" ] && sql -e 'select 1' >/dev/null 2>&1 ;;
    epmd | rabbitmq) listening "$1" "${PORTS[$1]%% *}" ;;
    libvirt) [ -S "$RUN/libvirt/libvirt-sock" ] ;;
    *) ( exec 3<>"/dev/tcp/$SANDBOX_HOST/${PORTS[$1]}" &&
      printf 'GET / HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n' >&3 &&
      read -r -t 60 line <&3 && [[ $line = HTTP/* ]] ) 2>/dev/null ;;
  esac
}
# await waits for what another chain starts.
await() { until listening "$1" "${PORTS[$1]}" || [ -e "$STATE/.failed" ]; do sleep 0.1; done; }
serving() { # wait until a piece serves
  local i
  case $1 in
    nova-api) ;;
    nova-* | cinder-scheduler | cinder-volume | octavia-worker) seed consumers "$1"; return ;;
  esac
  for ((i = 0; i < 1200; i++)); do
    serves "$1" && return 0
    alive "$1" || die "$1 died ($(last_line "$LOG/$1.log")), see $LOG/$1.log"
    sleep 0.1
  done
  die "$1 does not serve after two minutes, see $LOG/$1.log, or try 'sandbox stop $1' and 'sandbox up'"
}

# ---- how each piece is started ---------------------------------------------

launch() { # launch NAME : its data are there
  local nova=(--config-file "$CONF/nova/nova.conf" --config-file)
  alive "$1" && return 0
  case $1 in
    mariadb) launch_mariadb ;;
    # Our own epmd on our own port, listening before rabbit looks for one: else rabbit leaves a daemon behind.
    epmd) spawn epmd epmd -address 127.0.0.1 -port "$SANDBOX_EPMD_PORT" ;;
    rabbitmq) launch_rabbitmq ;;
    keystone) OS_KEYSTONE_CONFIG_DIR=$CONF/keystone spawn keystone "$PY" "$LIB/sandbox_wsgi.py" \
      sandbox_keystone:initialize "$SANDBOX_HOST" "$SANDBOX_KEYSTONE_PORT" 8 ;;
    placement) OS_PLACEMENT_CONFIG_DIR=$CONF/placement spawn placement "$PY" "$LIB/sandbox_wsgi.py" \
      placement.wsgi:init_application "$SANDBOX_HOST" "$SANDBOX_PLACEMENT_PORT" 6 ;;
    glance) service glance glance.cmd.api:main --config-file "$CONF/glance/glance-api.conf" ;;
    neutron-server) service "$1" sandbox_neutron:main --config-file "$CONF/neutron/neutron.conf" ;;
    nova-api) service "$1" nova.cmd.api_os_compute:main "${nova[@]}" "$CONF/nova/db-cell0.conf" ;;
    nova-scheduler) service "$1" nova.cmd.scheduler:main "${nova[@]}" "$CONF/nova/db-cell0.conf" ;;
    nova-conductor) service "$1" nova.cmd.conductor:main "${nova[@]}" "$CONF/nova/db-cell1.conf" ;;
    libvirt) launch_libvirt ;;
    "nova-$GUEST_HOST") service "$1" sandbox_guests:main "${nova[@]}" "$CONF/nova/${1#nova-}.conf" ;;
    nova-*) service "$1" sandbox_compute:main "${nova[@]}" "$CONF/nova/${1#nova-}.conf" ;;
    *) launch_optional "$1" ;;
  esac
}
service() { local name=$1; shift; spawn "$name" "$PY" "$LIB/svc.py" "$name" "$@"; }
launch_mariadb() {
  if [ ! -e "$DB/.complete" ]; then
    rm -rf "$DB"
    "${IN[@]}" mariadb-install-db --defaults-file="$CONF/my.cnf" --auth-root-authentication-method=normal \
      --skip-test-db --skip-name-resolve > "$LOG/mariadb-install.log" 2>&1 ||
      die "mariadb-install-db failed, see $LOG/mariadb-install.log"
    touch "$DB/.complete"
  fi
  spawn mariadb mariadbd --defaults-file="$CONF/my.cnf" --init-file="$CONF/init.sql"
}
launch_rabbitmq() {
  rm -rf "$STATE/rabbitmq"; mkdir -p "$STATE/rabbitmq"   # queues are transient anyway
  local quiet='+sbwtdio none +S 1:1'
  # The computes wait for it and it takes seconds to start: let it go first.
  spawn rabbitmq nice -n -10 env HOME="$STATE/rabbitmq" RUNNING_UNDER_SYSTEMD=true \
    ERL_CRASH_DUMP="$LOG/erl_crash.dump" ERL_EPMD_PORT="$SANDBOX_EPMD_PORT" ERL_EPMD_ADDRESS=127.0.0.1 \
    RABBITMQ_NODENAME=sandbox@localhost RABBITMQ_DIST_PORT="$SANDBOX_RABBIT_DIST_PORT" \
    RABBITMQ_CONFIG_FILE="$CONF/rabbitmq" RABBITMQ_ENABLED_PLUGINS_FILE="$CONF/rabbitmq_plugins" \
    RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_ADVANCED_CONFIG_FILE="$CONF/none" \
    RABBITMQ_MNESIA_BASE="$STATE/rabbitmq" RABBITMQ_LOG_BASE="$STATE/rabbitmq" RABBITMQ_LOGS=- \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none $quiet" \
    /usr/lib/rabbitmq/bin/rabbitmq-server
}

# ---- a cell that is down ---------------------------------------------------

# Nova reaches the database of cell1 as its own user at its own socket: without both it finds no server.
cell_down() { rm -f "$RUN/cell1.sock"; sql -e "KILL USER cell1@localhost" || die "MariaDB does not answer"; }
cell_up() { ln -sfn mysql.sock "$RUN/cell1.sock"; }
