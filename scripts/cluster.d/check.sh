# shellcheck shell=bash
# Whether this machine can run a cluster at all, checked before anything is compiled; and what Debian has of it.

cannot() { echo "cluster: this machine cannot run a cluster: $*" >&2; exit 3; }

check_machine() { # each thing is tried, not guessed
  local c probe=$STATE/.probe
  [ "$(uname -s)" = Linux ] || cannot "it is not Linux"
  command -v go >/dev/null || cannot "there is no go command"
  c=$(awk '/^MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
  [ "$c" -ge 3600 ] || cannot "it has $c MB of memory, 4 GB are needed"
  c=$(df --output=avail -m "$STATE" | tail -1)
  [ "$c" -ge 2000 ] || cannot "$STATE has$c MB of free space, 2 GB are needed"
  modprobe -q -a overlay br_netfilter nf_tables 2>/dev/null
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    for c in cpu cpuset memory pids; do
      grep -qw $c /sys/fs/cgroup/cgroup.controllers ||
        cannot "no cgroup controller $c in /sys/fs/cgroup/cgroup.controllers"
    done
    { echo "+cpu +cpuset +memory +pids" > /sys/fs/cgroup/cgroup.subtree_control; } 2>/dev/null ||
      cannot "no right to hand cgroup controllers down in /sys/fs/cgroup"
  else
    for c in cpu cpuacct cpuset devices memory pids; do
      [ -d /sys/fs/cgroup/$c ] || cannot "no cgroup controller in /sys/fs/cgroup/$c"
    done
  fi
  cgroup mkdir -p 2>/dev/null || cannot "no right to make groups in /sys/fs/cgroup"
  mkdir -p "$probe"/{lower,upper,work,merged}
  c="lowerdir=$probe/lower,upperdir=$probe/upper,workdir=$probe/work"
  { mount -t overlay overlay -o "$c" "$probe/merged" && umount "$probe/merged"; } 2>/dev/null; c=$?
  rm -rf "$probe"
  [ $c = 0 ] || cannot "no overlayfs mount in $STATE (set CLOUDFN_CLUSTER to a folder on a disk that can carry one)"
  unshare --net --pid --ipc --uts --mount --fork true 2>/dev/null || cannot "no right to make namespaces"
  ! command -v ip >/dev/null || check_links
}
check_links() {
  local probe=cfnprobe$((BASHPID % 10000))
  ip link add "$probe" type bridge 2>/dev/null || cannot "no network bridges (ip link add type bridge)"
  ip link del "$probe"
  ip link add "$probe" type veth peer name "${probe}b" 2>/dev/null || cannot "no veth network devices"
  ip link del "$probe"
  [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || cannot "the kernel has no br_netfilter"
}
check_nat() { # after the packages, for nft
  local probe=cloudfn-probe
  check_links
  nft -c -f - 2>/dev/null <<-END || cannot "no nftables with NAT in the kernel (nft)"
	table ip $probe {
	  map services { type ipv4_addr . inet_proto . inet_service : verdict; }
	  chain endpoint { meta l4proto tcp dnat to 127.0.0.1:1; }
	  chain service { numgen random mod 1 vmap { 0 : goto endpoint }; }
	  chain nat {
	    type nat hook prerouting priority dstnat; fib daddr type local ip daddr . meta l4proto . th dport vmap @services;
	  }
	  chain masq { type nat hook postrouting priority srcnat; meta mark and 0x4000 != 0 masquerade fully-random; }
	}
	END
}
# What another program may hold: the node's address, and the ports of our processes.
check_addresses() {
  local n p at who
  who=$(ip -o -4 addr | awk -v ip="$NODE_IP" -v b="$BRIDGE" '$2 != b && index($4, ip "/") == 1 {print $2}')
  [ -z "$who" ] || die "another program holds $NODE_IP (network device $who): stop it"
  who=$(ip -4 route show root "$POD_CIDR" | grep -v " dev $BRIDGE " | head -1)
  [ -z "$who" ] || die "another program holds addresses of $POD_CIDR (route $who): stop it"
  for n in "${NAMES[@]}"; do
    alive "$n" && continue
    for p in ${PORTS[$n]}; do
      at=${p%:*}
      who=$(ss -Hltnp "sport = :${p#*:}" | awk -v a="$at" '
        { h = $4; sub(/:[0-9]+$/, "", h) }
        h == a || h == "0.0.0.0" || h == "*" || h == "[::]" { print $6 == "" ? "unknown" : $6; exit }')
      [ -z "$who" ] || who=${who#*((\"} who=${who%%\"*}
      [ -z "$who" ] || die "port ${p#*:} ($n) is held by another process ($who): stop that"
    done
  done
}

install_packages() {
  local c need=()
  for c in ip:iproute2 sysctl:procps nft:nftables openssl:openssl etcd:etcd-server containerd:containerd runc:runc; do
    command -v "${c%:*}" >/dev/null || need+=("${c#*:}")
  done
  [ -x /usr/lib/cni/bridge ] || need+=(containernetworking-plugins)
  [ ${#need[@]} -eq 0 ] && return 0
  command -v apt-get >/dev/null || cannot "there is no apt-get to install ${need[*]}"
  "$HERE/../apt" "${need[@]}" || exit 1
}
