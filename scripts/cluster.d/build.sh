# shellcheck shell=bash
# What the cluster runs, compiled: each piece once, and again when what it is made of changes.  The versions of what
# is built in src/ are in the go.mod files there.

KUBERNETES=v1.35.4
TRAEFIK=v3.6.12
TRAEFIK_KUBERNETES_LIBS=v0.35.7
KN=v0.44.0
KN_PKG=v0.0.0-20250120185908-9baddba98cbd
FUNC=v0.44.0
PIECES=(tools kubernetes serving eventing manifests coredns traefik kn func)

build() {
  local n
  mkdir -p "$BIN" "$EXE" "$LOG" "$SRC" "$STATE/built"
  # A fresh machine waits for the compiler: no debug information, no inlining, and a lazy garbage collector in the
  # compiler save a third of it.
  export CGO_ENABLED=0 GOWORK=off
  export GOFLAGS="-trimpath -buildvcs=false '-gcflags=all=-dwarf=false -l' '-ldflags=-s -w'"
  for n in "${PIECES[@]}"; do piece "$n"; done
}
piece() { # piece NAME : compile it when it is missing or made of something else
  local stamp=$STATE/built/$1 start=$SECONDS key
  key=$(signature "$1")
  [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && return 0
  say "building $1"
  ("build_$1") > "$LOG/build-$1.log" 2>&1 </dev/null ||
    die "building $1 failed ($(last_line "$LOG/build-$1.log")), see $LOG/build-$1.log"
  echo "$key" > "$stamp"
  say "built $1 in $((SECONDS - start)) s"
}
signature() {
  local from=()
  case $1 in
    tools) from=(core/go.mod core/imagetool core/pause) ;;
    kubernetes) from=(core/go.mod core/hyperkube) ;;
    serving | eventing | manifests) from=(core/go.mod) ;;
    coredns | traefik) from=("$1") ;;
  esac
  {
    declare -f "build_$1" join small
    echo "$GOFLAGS $REGISTRY $KUBERNETES $TRAEFIK $TRAEFIK_KUBERNETES_LIBS $KN $KN_PKG $FUNC"
    [ ${#from[@]} -eq 0 ] || (cd "$HERE/src" && find "${from[@]}" -type f -print0 | sort -z | xargs -0 cksum)
  } | sha256sum
}
gobuild() { GOGC=800 go build "$@"; }
modcopy() { # modcopy FOLDER MODULE@VERSION : of a module that needs its own go.mod to be built
  local from
  from=$(cd / && go mod download -json "$2" | sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p')
  [ -n "$from" ] || { echo "no module $2"; return 1; }
  rm -rf "$1"; mkdir -p "$1"
  tar c -C "$from" --exclude='*_test.go' --exclude=testdata --exclude=docs --exclude=integration --exclude=./test . |
    tar x -C "$1" &&
    chmod -R u+w "$1"
}

build_tools() { cd "$HERE/src/core" && gobuild -o "$EXE/" ./imagetool ./pause; }
build_kubernetes() {
  local c p minor=${KUBERNETES#v1.} flags='-s -w'
  for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $p.gitVersion=$KUBERNETES -X $p.gitMajor=1 -X $p.gitMinor=${minor%%.*}"
  done
  cd "$HERE/src/core" && gobuild -tags grpcnotrace -o "$EXE/hyperkube" -ldflags "$flags" ./hyperkube || return
  for c in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet; do ln -sf hyperkube "$EXE/$c"; done
  ln -sf ../exec/hyperkube "$BIN/kubectl"
}
build_serving() {
  mkdir -p "$EXE/serving"
  cd "$HERE/src/core" &&
    gobuild -o "$EXE/serving/" knative.dev/serving/cmd/{controller,webhook,activator,autoscaler,queue}
}
build_eventing() {
  mkdir -p "$EXE/eventing"
  cd "$HERE/src/core" && gobuild -o "$EXE/eventing/" knative.dev/eventing/cmd/{controller,webhook,mtping}
}
build_coredns() { cd "$HERE/src/coredns" && gobuild -o "$EXE/coredns" .; }
# Traefik's go.mod has replacements: it is built in a copy of the module, with our list of DNS providers (see there).
build_traefik() {
  local lego
  lego=$(sed -n 's#^require \(github.com/go-acme/lego/v4\) #\1@#p' "$HERE/src/traefik/go.mod")
  modcopy "$SRC/lego" "$lego" && modcopy "$SRC/traefik" "github.com/traefik/traefik/v3@$TRAEFIK" &&
    cp "$HERE/src/traefik/dns_providers.go" "$SRC/lego/providers/dns/zz_gen_dns_providers.go" &&
    cd "$SRC/traefik" && go mod edit -replace=github.com/go-acme/lego/v4=../lego \
    -require=k8s.io/{api,apiextensions-apiserver,apimachinery,client-go}@$TRAEFIK_KUBERNETES_LIBS &&
    gobuild -mod=mod -o "$EXE/traefik" ./cmd/traefik && rm -rf "$SRC/traefik" "$SRC/lego"
}
# kn's go.mod points at a folder that its module does not hold.
build_kn() {
  modcopy "$SRC/kn" "knative.dev/client@$KN" && cd "$SRC/kn" &&
    go mod edit -replace="knative.dev/client/pkg=knative.dev/client/pkg@$KN_PKG" &&
    gobuild -mod=mod -ldflags "-s -w -X knative.dev/client/pkg/commands/version.Version=$KN" -o "$BIN/kn" ./cmd/kn &&
    rm -rf "$SRC/kn"
}
build_func() {
  modcopy "$SRC/func" "knative.dev/func@$FUNC" && cd "$SRC/func" &&
    gobuild -mod=mod -ldflags "-s -w -X knative.dev/func/pkg/app.vers=$FUNC" -o "$BIN/func" ./cmd/func &&
    rm -rf "$SRC/func"
}

# The manifests come from the very modules that the images are built from.
join() { # join FILE... : one stream of documents, with our images and probes that begin soon
  local f
  for f; do
    [ -f "$f" ] || { echo "no manifest $f" >&2; return 1; }
    echo ---
    sed -E -e "s#ko://knative.dev/(serving|eventing)/cmd/([a-z_/]+)#$REGISTRY/knative/\1-\2:local#" \
      -e 's/initialDelaySeconds: 20/initialDelaySeconds: 1/' "$f"
  done
}
# Knative's own pods request more than a core together: the few that a test machine has are for what is tested.
small() {
  join "$@" |
    sed -E '/^ *requests:/,/^ *memory:/{s/cpu: .*/cpu: 10m/; s/memory: .*/memory: 32Mi/}; /^ *limits:/,/^ *memory:/s/cpu: .*/cpu: 2/'
}
build_manifests() {
  local serving eventing networking caching out=$STATE/manifests
  cd "$HERE/src/core" || return
  serving=$(go list -m -f '{{.Dir}}' knative.dev/serving) &&
    eventing=$(go list -m -f '{{.Dir}}' knative.dev/eventing) &&
    networking=$(go list -m -f '{{.Dir}}' knative.dev/networking) &&
    caching=$(go list -m -f '{{.Dir}}' knative.dev/caching) || return
  rm -rf "$out"; mkdir -p "$out"
  join "$serving"/config/core/300-resources/*.yaml \
    "$networking"/config/{certificate,domain-claim,ingress,serverlessservice}.yaml "$caching/config/image.yaml" \
    "$eventing"/config/core/resources/*.yaml > "$out/1-resources.yaml" || return
  { join "$serving"/config/core/{100-namespace,200-serviceaccount}.yaml \
    "$serving"/config/core/{200-roles,configmaps}/*.yaml \
    "$networking/config/config-network.yaml" "$serving"/config/core/webhooks/secret.yaml \
    "$eventing"/config/core/{100-namespace,200-*}.yaml "$eventing"/config/core/{roles,configmaps}/*.yaml \
    "$eventing"/third_party/eventing-integrations-latest/eventing-*-images.yaml \
    "$eventing"/config/core/webhooks/secret.yaml &&
    small "$serving"/config/core/deployments/{activator,autoscaler,controller,webhook}.yaml \
      "$eventing"/config/core/deployments/{controller,webhook,pingsource-mt-adapter}.yaml; } \
    > "$out/2-core.yaml" || return
  join "$serving"/config/core/{999-cache,300-knativecertificate}.yaml \
    "$serving"/config/core/webhooks/{configmap-validation,defaulting,resource-validation}.yaml \
    "$eventing"/config/core/webhooks/{config-validation,defaulting,resource-validation,sinkbindings}.yaml \
    > "$out/3-webhooks.yaml"
}
