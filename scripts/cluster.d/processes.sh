# shellcheck shell=bash disable=SC2034
# The cluster's processes on the machine itself: what there is, how each is started, checked, and stopped.
# A signal goes only to what was started here: a pid file holds pid, start time and boot; the pods' processes are
# those in the cgroup that only our kubelet uses.

NAMES=(
  registry containerd etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns traefik
)
declare -A PORTS=([registry]=$REGISTRY [containerd]='' [etcd]="$ETCD ${ETCD%:*}:$((${ETCD#*:} + 1))"
  [kube-apiserver]=$NODE_IP:6443
  [kube-controller-manager]=127.0.0.1:10257 [kube-scheduler]=127.0.0.1:10259 [kubelet]="$NODE_IP:10250 127.0.0.1:10248"
  [kube-proxy]="127.0.0.1:10256 127.0.0.1:10249" [coredns]=$NODE_IP:53 [traefik]="$NODE_IP:80 $NODE_IP:8081")

last_line() { grep -av '^[[:space:]]*$' "$1" 2>/dev/null | tail -1 | cut -c1-300; }
started_at() { # start time of a pid, in ticks since boot
  local st; { st=$(</proc/"$1"/stat); } 2>/dev/null || return 1
  # shellcheck disable=SC2086
  set -- ${st##*) }
  case $1 in [ZX]) return 1 ;; esac   # dead, and not yet reaped
  echo "${20}-$BOOT"
}
alive() {
  local pid start
  { read -r pid start < "$RUN/$1.pid"; } 2>/dev/null || return 1
  [ "$(started_at "$pid")" = "$start" ]
}
spawn() { # spawn NAME command... : own session, own log, pid file
  local name=$1 pid; shift
  alive "$name" && return 0
  [ -e "$RUN/$name.pid" ] && say "$name died ($(last_line "$LOG/$name.log")), starting it again"
  setsid "$@" > "$LOG/$name.log" 2>&1 </dev/null 9>&- &
  pid=$!
  echo "$pid $(started_at $pid)" > "$RUN/$name.pid"
}
stop() { # stop SIGNAL NAME... : waits until they have ended; KILL is enough for what keeps nothing
  local signal=$1 n i pid left=(); shift
  for n; do
    alive "$n" || continue
    read -r pid _ < "$RUN/$n.pid"; left+=("$n")
    kill "-$signal" "$pid" 2>/dev/null
  done
  for ((i = 0; i < 100 && ${#left[@]}; i++)); do
    for n in "${!left[@]}"; do alive "${left[n]}" || unset "left[n]"; done
    [ ${#left[@]} -eq 0 ] || sleep 0.1
  done
  [ ${#left[@]} -eq 0 ] || die "${left[*]} cannot be stopped"
  for n; do rm -f "$RUN/$n.pid"; done
}
wait_for() { # wait_for NAME SECONDS command... : until a process serves
  local name=$1 limit=$((SECONDS + $2)); shift 2
  until "$@" >/dev/null 2>&1; do
    alive "$name" || die "$name died ($(last_line "$LOG/$name.log")), see $LOG/$name.log"
    [ $SECONDS -lt $limit ] || die "$name does not serve in time, see $LOG/$name.log"
    sleep 0.2
  done
}
connects() { (exec 3<>"/dev/tcp/${1%:*}/${1#*:}") 2>/dev/null; }

launch() { # launch NAME
  local components=(--leader-elect=false --kubeconfig "$KUBECONFIG" --bind-address 127.0.0.1
    --kube-api-qps 200 --kube-api-burst 400 --profiling=false)
  local peer=http://${PORTS[etcd]#* } client=http://$ETCD
  case $1 in
    registry) spawn registry "$EXE/imagetool" serve "$REGISTRY" "$STATE/registry" ;;
    containerd) spawn containerd containerd -c "$ETC/containerd.toml" ;;
    etcd) install -d -m 700 "$STATE/etcd"
      spawn etcd etcd --name cloudfn --data-dir "$STATE/etcd" --logger zap --log-level warn \
        --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "cloudfn=$peer" ;;
    kube-apiserver) spawn "$1" "$EXE/$1" --etcd-servers "$client" \
      --bind-address "$NODE_IP" --advertise-address "$NODE_IP" --secure-port 6443 \
      --service-cluster-ip-range "$SERVICE_CIDR" \
      --client-ca-file "$PKI/ca.crt" --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" \
      --kubelet-client-certificate "$PKI/admin.crt" --kubelet-client-key "$PKI/admin.key" \
      --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$PKI/service-account.pub" \
      --service-account-signing-key-file "$PKI/service-account.key" --authorization-mode RBAC \
      --kubelet-preferred-address-types InternalIP --profiling=false \
      --feature-gates SizeBasedListCostEstimate=false ;;   # it requires a newer etcd than Debian's, and fills the log
    kube-controller-manager) spawn "$1" "$EXE/$1" "${components[@]}" \
      --root-ca-file "$PKI/ca.crt" --service-account-private-key-file "$PKI/service-account.key" \
      --cluster-signing-cert-file "$PKI/ca.crt" --cluster-signing-key-file "$PKI/ca.key" \
      --flex-volume-plugin-dir "$STATE/kubelet/volume-plugins" ;;
    kube-scheduler) spawn "$1" "$EXE/$1" "${components[@]}" ;;
    kubelet)
      mkdir -p "$STATE/kubelet"
      cgroup mkdir -p || die "no right to make groups in /sys/fs/cgroup"
      spawn "$1" "$EXE/$1" --config "$ETC/kubelet.yaml" --kubeconfig "$KUBECONFIG" --root-dir "$STATE/kubelet" \
        --cert-dir "$STATE/kubelet/pki" --volume-plugin-dir "$STATE/kubelet/volume-plugins" \
        --hostname-override "$NODE_NAME" --node-ip "$NODE_IP" ;;
    kube-proxy) spawn "$1" "$EXE/$1" --config "$ETC/kube-proxy.yaml" ;;
    coredns) spawn "$1" "$EXE/$1" -conf "$ETC/Corefile" ;;
    traefik) spawn "$1" "$EXE/$1" --global.checknewversion=false --global.sendanonymoususage=false --log.level=INFO \
      --entrypoints.web.address="$NODE_IP:80" --entrypoints.local.address="$NODE_IP:8081" \
      --experimental.knative=true --providers.knative=true --providers.knative.throttleduration=200ms \
      --providers.providersthrottleduration=200ms \
      --providers.knative.publicentrypoints=web --providers.knative.privateentrypoints=local \
      --providers.knative.publicservice.namespace=traefik --providers.knative.publicservice.name=traefik \
      --providers.knative.privateservice.namespace=traefik --providers.knative.privateservice.name=traefik-internal ;;
  esac
}

cgroup() { # cgroup COMMAND... : on our group, in the one tree (v2) or in each controller's (v1)
  local t trees=(/sys/fs/cgroup)
  [ -e /sys/fs/cgroup/cgroup.controllers ] || trees=(/sys/fs/cgroup/*)
  for t in "${trees[@]}"; do
    [ ! -e "$t/cgroup.procs" ] || "$@" "$t$CGROUP" || return
  done
}

# ---- what pods reach of the machine ----------------------------------------

forward() { # forward PORT : to the target that is written down for it
  local target; target=$(<"$RUN/expose-$1.target")
  spawn "expose-$1" "$EXE/imagetool" forward "$NODE_IP:$1" "$target"
  wait_for "expose-$1" 5 grep -q forwarding "$LOG/expose-$1.log"   # another program may listen there
}
forwards() { # the ports that are exposed
  local f
  for f in "$RUN"/expose-*.target; do
    [ ! -e "$f" ] || { f=${f##*/expose-}; echo "${f%.target}"; }
  done
}

# ---- what is left when the processes have ended ------------------------------

in_groups() { local folder=${!#}; [ ! -e "$folder" ] || find "$folder" "${@:1:$#-1}" 2>/dev/null; true; }
pods_gone() { # the kubelet is stopped before
  local i pid pids f
  for ((i = 0; i < 100; i++)); do
    pids=$(cgroup in_groups -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u)
    [ -n "$pids" ] || break
    for pid in $pids; do kill -KILL "$pid" 2>/dev/null; done
    sleep 0.1
  done
  stop KILL containerd
  for f in /proc/[0-9]*/cmdline; do # the shims, by the socket of our containerd
    pid=${f#/proc/} pid=${pid%/cmdline}
    tr '\0' ' ' 2>/dev/null < "$f" | grep -q -- "^[^ ]*containerd-shim-runc-v2 .*-address $RUN/containerd.sock " &&
      kill -KILL "$pid" 2>/dev/null
  done
  for f in "$RUN"/containerd/io.containerd.runtime.v2.task/*/*/address; do
    [ ! -e "$f" ] || { f=$(<"$f"); rm -f "${f#unix://}"; }
  done
}
traces_gone() {
  local m
  # Mounts of containers and pods, deepest first.
  awk -v a="$STATE/" -v b="$RUN/" 'index($2, a) == 1 || index($2, b) == 1 {print $2}' /proc/mounts | sort -r |
    while read -r m; do umount -l "$m"; done
  ip link del "$BRIDGE" 2>/dev/null
  nft delete table ip kube-proxy 2>/dev/null
  nft delete table ip6 kube-proxy 2>/dev/null
  cgroup in_groups -depth -type d -exec rmdir {} +
  rm -rf "$STATE"/{etcd,kubelet,containerd} "$PKI" "$ETC" "$RUN"
}
