#!/bin/sh
# Installs an agent on this instance at its first boot. cloudfn's cloud-config writes this script and its parameters.
#
# /run/cloudfn-agent is in memory and for root only: it contains the parameters, the bundle and its parts, and is
# deleted when this script ends. The container survives a reboot. It is created once; its environment and the agent's
# own data are in the runtime's storage, which only root reads. The unit that starts it contains no secret.
set -eu
umask 077
name=cloudfn-agent
run=/run/cloudfn-agent
unit=/etc/systemd/system/cloudfn-agent.service

fail() {
  echo "$name: $*" >&2
  exit 1
}
trap 'rm -rf "$run"' EXIT
trap 'exit 1' HUP INT TERM
chmod 700 "$run"

# Each is one line of characters that are not special to a shell.
{
  read -r url
  read -r deployment
  read -r token
  read -r key
  read -r sum
  read -r image
} < "$run/parameters"

# call WHAT OUTPUT OPTION...: sends a request and prints the status of the answer, 000 without one. The token is not on
# the command line, because the list of processes shows that.
call() {
  what=$1 output=$2
  shift 2
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl --config - --silent --max-time 60 --output "$output" --write-out '%{http_code}' "$@" \
      "$url/v1/agents/$deployment/$what" || true
}

# retry WHAT OUTPUT OPTION...: calls until there is a final answer, for ten minutes: the network may not be up yet.
retry() {
  tries=0
  while :; do
    status=$(call "$@")
    case $status in
      2??) return 0 ;;
      408 | 429) ;;
      4??) fail "cloudfn refuses the $1 of deployment $deployment with status $status" ;;
    esac
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || fail "cloudfn gives no answer (the last status was $status)"
    sleep 5
  done
}

# ---- the bundle: fetched once, and decrypted only if its hash is right ----

retry bundle "$run/sealed"
[ "$(openssl dgst -sha256 -r < "$run/sealed" | cut -d ' ' -f 1)" = "$sum" ] ||
  fail "the bundle is not the one of deployment $deployment"
printf '%s\n' "$key" > "$run/key"
openssl enc -d -aes-256-cbc -pbkdf2 -iter 10000 -md sha256 -pass "file:$run/key" -in "$run/sealed" -out "$run/bundle"

# Each of its lines is a word and a value in base64, so that no value is taken for something else.
set --
while read -r kind value; do
  case $kind in
    env) printf %s "$value" | base64 -d > "$run/env" ;;
    login) printf %s "$value" | base64 -d > "$run/config.json" ;;
    argument)
      argument=$(printf %s "$value" | base64 -d && echo .) # the dot keeps the newlines before it
      set -- "$@" "${argument%.}"
      ;;
  esac
done < "$run/bundle"

# ---- the container ----

install() {
  if command -v apt-get > /dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y "$1"
  elif command -v dnf > /dev/null; then
    dnf install -y "$1"
  elif command -v zypper > /dev/null; then
    zypper --non-interactive install "$1"
  else
    return 1
  fi
}

# Podman needs no daemon. Docker is the fallback.
runtime=$(command -v podman || command -v docker) || {
  install podman || install docker.io || install docker || true
  runtime=$(command -v podman || command -v docker) || fail "neither podman nor docker can be installed here"
}
case $runtime in
  *docker) systemctl enable --now docker.service ;;
esac

tries=0
until DOCKER_CONFIG=$run REGISTRY_AUTH_FILE=$run/config.json "$runtime" pull --quiet "$image"; do
  tries=$((tries + 1))
  [ "$tries" -lt 20 ] || fail "$image cannot be pulled"
  sleep 15
done

# An earlier version is removed. The agent is on the host network, so that it is reachable at the instance's address.
systemctl stop "$name.service" > /dev/null 2>&1 || true
"$runtime" rm --force "$name" > /dev/null 2>&1 || true
"$runtime" create --name "$name" --network host --env-file "$run/env" "$image" "$@"

cat > "$unit" << END
[Unit]
Description=The agent that cloudfn has deployed
Wants=network-online.target
After=network-online.target docker.service

[Service]
ExecStart=$runtime start --attach $name
ExecStop=$runtime stop -t 30 $name
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
END
chmod 644 "$unit"
systemctl daemon-reload
systemctl enable "$name.service"
systemctl restart "$name.service"

# ---- ready: reported once, when the container runs and has not just been restarted ----

state() { "$runtime" inspect --format '{{.State.Running}} {{.State.StartedAt}}' "$name"; }

tries=0
while :; do
  first=$(state || true)
  sleep 5
  case $first in
    true*) [ "$first" != "$(state || true)" ] || break ;;
  esac
  tries=$((tries + 1))
  [ "$tries" -lt 120 ] || fail "the container does not stay up"
done
retry ready /dev/null --data ''
