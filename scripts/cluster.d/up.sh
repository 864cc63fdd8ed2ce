# shellcheck shell=bash
# From processes to a cluster with Knative: network, configuration, certificates, images, resources.

network() {
  ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge
  { ip addr replace "$NODE_IP/24" dev "$BRIDGE" && ip link set "$BRIDGE" up &&
    sysctl -q -w net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1; } ||
    die "the bridge $BRIDGE cannot be set up"
}
configure() { # a file is written only when it changes: kube-proxy ends when its own is written
  local f to
  mkdir -p "$ETC/cni" "$ETC/certs.d/$REGISTRY"
  for f in kubelet.yaml kube-proxy.yaml containerd.toml cni.conflist hosts.toml Corefile ingress.yaml; do
    case $f in cni.conflist) to=cni/10-cloudfn.conflist ;; hosts.toml) to=certs.d/$REGISTRY/$f ;; *) to=$f ;; esac
    sed -e "s#@STATE@#$STATE#g; s#@RUN@#$RUN#g; s#@NODE_IP@#$NODE_IP#g; s#@NODE_NAME@#$NODE_NAME#g" \
      -e "s#@CGROUP@#$CGROUP#g; s#@POD_CIDR@#$POD_CIDR#g; s#@REGISTRY@#$REGISTRY#g; s#@BRIDGE@#$BRIDGE#g" \
      -e "s#@DOMAIN@#$DOMAIN#g" "$HERE/config/$f" > "$ETC/.new" || exit 1
    cmp -s "$ETC/.new" "$ETC/$to" || mv "$ETC/.new" "$ETC/$to"
  done
  : > "$ETC/resolv.conf"
  echo "$BOOT" > "$ETC/boot"
}
sign() { # sign NAME SUBJECT EXTENSIONS
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" &&
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile <(echo "$3") \
      -out "$1.crt"
}
certificates() {
  [ -e "$PKI/done" ] && return 0
  install -d -m 700 "$PKI"
  local hosts="subjectAltName=IP:$NODE_IP,IP:$KUBERNETES_IP,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default"
  hosts+=,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
  ( cd "$PKI" &&
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=cloudfn-cluster \
      -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,digitalSignature \
      -keyout ca.key -out ca.crt &&
    sign apiserver /CN=kube-apiserver "$hosts" &&
    sign admin /O=system:masters/CN=admin extendedKeyUsage=clientAuth &&
    openssl genrsa -out service-account.key 2048 && openssl rsa -in service-account.key -pubout -out service-account.pub
  ) > "$LOG/pki.log" 2>&1 || die "openssl failed ($(last_line "$LOG/pki.log")), see $LOG/pki.log"
  cat > "$KUBECONFIG" <<-END
	apiVersion: v1
	kind: Config
	current-context: cloudfn-cluster
	clusters: [{name: cloudfn-cluster, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $PKI/ca.crt}}]
	users: [{name: admin, user: {client-certificate: $PKI/admin.crt, client-key: $PKI/admin.key}}]
	contexts: [{name: cloudfn-cluster, context: {cluster: cloudfn-cluster, user: admin, namespace: default}}]
	END
  touch "$PKI/done"
}
images() { # push what the registry does not have yet
  local b key list=(serving/{controller,webhook,activator,autoscaler,queue} eventing/{controller,webhook,mtping})
  wait_for registry 20 connects "$REGISTRY"
  key=$(cd "$EXE" && stat -c '%n %s %Y' pause imagetool "${list[@]}" | cksum)
  [ -d "$STATE/registry/manifests" ] && [ "$(cat "$STATE/built/images" 2>/dev/null)" = "$key" ] && return 0
  { "$EXE/imagetool" base "$REGISTRY/$BASE" && "$EXE/imagetool" push "$REGISTRY/pause:local" "$EXE/pause" &&
    for b in "${list[@]}"; do "$EXE/imagetool" push "$REGISTRY/knative/${b/\//-}:local" "$EXE/$b" || exit; done
  } > "$LOG/images.log" 2>&1 || die "pushing images failed ($(last_line "$LOG/images.log")), see $LOG/images.log"
  echo "$key" > "$STATE/built/images"
}

api_serves() { "$BIN/kubectl" --request-timeout=5s get --raw /readyz >/dev/null 2>&1; }
kube() { "$BIN/kubectl" "$@" >> "$LOG/kubectl.log" 2>&1; }
apply() {
  kube apply --server-side --force-conflicts --field-manager cloudfn-cluster -f "$1" ||
    die "kubectl apply of $1 failed ($(last_line "$LOG/kubectl.log")), see $LOG/kubectl.log"
}
config() { # config NAMESPACE CONFIGMAP KEY=VALUE...
  local namespace=$1 name=$2 pair data=''; shift 2
  for pair; do data+=",\"${pair%%=*}\":\"${pair#*=}\""; done
  kube patch configmap -n "$namespace" "$name" --type merge -p "{\"data\":{${data#,}}}" ||
    die "setting $name failed ($(last_line "$LOG/kubectl.log")), see $LOG/kubectl.log"
}
available() { # available NAMESPACE TITLE
  local pods
  kube wait --for=condition=Available --timeout=180s -n "$1" deployment --all && return
  pods=$("$BIN/kubectl" get pods -n "$1" --no-headers 2>&1 |
    awk '{split($2, r, "/"); if (r[1] != r[2]) print $1, $3}' | head -3 | paste -sd';')
  die "$2 is not available after three minutes ($pods), see 'kubectl describe pods -n $1'"
}
knative() { # what is applied already is not applied again
  local key
  key=$({ declare -f knative; echo "$CLUSTER_STABLE_WINDOW $CLUSTER_ZERO_GRACE"
    cat "$STATE"/manifests/*.yaml "$ETC/ingress.yaml"; } | cksum)
  if [ "$(cat "$ETC/applied" 2>/dev/null)" != "$key" ]; then
    apply "$STATE/manifests/2-core.yaml"
    apply "$ETC/ingress.yaml"
    config knative-serving config-network ingress-class=traefik.ingress.networking.knative.dev
    config knative-serving config-domain "$DOMAIN="
    # Dozens of pods on two cores: none requests more than it needs at least.
    config knative-serving config-deployment queue-sidecar-cpu-request=5m queue-sidecar-memory-request=16Mi
    config knative-serving config-autoscaler "stable-window=$CLUSTER_STABLE_WINDOW" \
      "scale-to-zero-grace-period=$CLUSTER_ZERO_GRACE"
    apply "$STATE/manifests/3-webhooks.yaml"
    echo "$key" > "$ETC/applied"
    say "Knative is applied"
  fi
  available knative-serving "Knative Serving"
  available knative-eventing "Knative Eventing"
}

up() {
  local n pusher fresh=1
  for n in "${NAMES[@]}"; do ! alive "$n" || fresh=; done
  [ -z "$fresh" ] || check_machine
  install_packages
  [ -z "$fresh" ] || check_nat
  check_addresses
  build
  if [ ! -e "$PKI/done" ] || [ "$(cat "$ETC/boot" 2>/dev/null)" != "$BOOT" ]; then
    if [ -e "$RUN" ] || [ -e "$STATE/etcd" ]; then say "removing what is left of an earlier cluster"; down; fi
  fi
  mkdir -p "$RUN"; echo "$STATE" > "$RUN/state"; : > "$LOG/kubectl.log"
  network
  configure
  certificates
  # An API server whose etcd was unavailable does not find back to it.
  ! alive kube-apiserver || { alive etcd && api_serves; } ||
    { say "the API server does not serve, starting it again"; stop KILL kube-apiserver; }
  for n in registry containerd etcd kube-apiserver; do launch $n; done
  images & pusher=$!
  wait_for kube-apiserver 60 api_serves
  say "the API serves"
  for n in kube-controller-manager kube-scheduler kubelet kube-proxy coredns; do launch $n; done
  [ -e "$ETC/applied" ] || { apply "$STATE/manifests/1-resources.yaml"; say "resources are defined"; }
  launch traefik
  wait $pusher || exit 1
  wait_for kubelet 60 "$BIN/kubectl" wait --for=condition=Ready --timeout=1s "node/$NODE_NAME"
  say "the node is ready"
  knative
  wait_for traefik 30 connects "$NODE_IP:80"
  wait_for coredns 30 connects "$NODE_IP:53"
  for n in $(forwards); do forward "$n"; done
  for n in "${NAMES[@]}"; do alive "$n" || die "$n died ($(last_line "$LOG/$n.log")), see $LOG/$n.log"; done
  say "up: eval \"\$($SELF env)\""
}
