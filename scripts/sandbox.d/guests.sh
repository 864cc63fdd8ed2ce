# shellcheck shell=bash
# The compute host with real guests (SANDBOX_GUESTS): libvirt and QEMU, and nova-compute with its libvirt driver.
#
# libvirtd and the guests are in a network of their own: one bridge that has the gateway's address of each network of
# the sandbox. No packet leaves it. They are also in a PID namespace of their own, so they end with the piece libvirt,
# as they do when a host loses its power. Nova reaches libvirt by its socket.

GUEST_HOST=guests
GUEST_PACKAGES=' qemu-system-x86 libvirt-daemon libvirt-daemon-driver-qemu python3-libvirt genisoimage'

guest_pieces() {
  case $SANDBOX_GUESTS in
    on)
      [ "$SANDBOX_RELEASE" = zed ] || die "SANDBOX_GUESTS=on needs SANDBOX_RELEASE=zed: libvirt is this machine's"
      COMPUTES+=("nova-$GUEST_HOST") NAMES+=(libvirt "nova-$GUEST_HOST") OPTIONAL_PACKAGES+=$GUEST_PACKAGES
      ;;
    off) ;;
    *) die "SANDBOX_GUESTS is '$SANDBOX_GUESTS': it must be on or off" ;;
  esac
}
guest_uri() { echo "qemu:///system?socket=$RUN/libvirt/libvirt-sock"; }
guest_gateways() { # the first address of each network, with its prefix
  local cidr
  for cidr in "$SANDBOX_PRIVATE_CIDR" "$SANDBOX_ALT_CIDR" "$SANDBOX_PARTNER_CIDR" "$SANDBOX_SHARED_CIDR"; do
    echo "${cidr%.*}.1/${cidr#*/}"
  done
}

write_guests() {
  local etc=$CONF/libvirt
  [ "$SANDBOX_GUESTS" = on ] || return 0
  mkdir -p "$etc" "$RUN/libvirt" "$STATE/libvirt"
  # On a machine without /dev/kvm, or where it does not work, QEMU computes what the guest runs.
  cat >> "$CONF/nova/$GUEST_HOST.conf" <<C
compute_driver = libvirt.LibvirtDriver
force_config_drive = true
[libvirt]
virt_type = qemu
cpu_mode = none
connection_uri = $(guest_uri)
C
  cat > "$etc/libvirtd.conf" <<C
unix_sock_dir = "$RUN/libvirt"
auth_unix_rw = "none"
auth_unix_ro = "none"
log_outputs = "3:stderr"
C
  cat > "$etc/qemu.conf" <<C
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
stdio_handler = "file"
cgroup_controllers = []
C
  # libvirt looks for this user, even if all runs as root.
  { cat /etc/passwd; echo 'libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin'; } > "$etc/passwd"
  { cat /etc/group; echo 'libvirt-qemu:x:64055:'; } > "$etc/group"
}

launch_libvirt() {
  local gateways; mapfile -t gateways < <(guest_gateways)
  # The shell is process 1 of the guests: it reaps them.
  # shellcheck disable=SC2016
  spawn libvirt nice -n 5 unshare --uts --net --mount --pid --fork --kill-child --mount-proc sh -euc '
    etc=$1 state=$2; shift 2
    mkdir -p /etc/libvirt /var/lib/libvirt /var/cache/libvirt "$state/lib" "$state/cache" "$state/run"
    mount --bind "$etc" /etc/libvirt
    mount --bind "$etc/passwd" /etc/passwd
    mount --bind "$etc/group" /etc/group
    mount --bind "$state/lib" /var/lib/libvirt
    mount --bind "$state/cache" /var/cache/libvirt
    mount -t sysfs none /sys   # of this network
    mount -t tmpfs none /sys/fs/cgroup
    rm -rf "$state/run"; mkdir -p "$state/run"
    mount --bind "$state/run" /run
    hostname guests
    ip link set lo up
    ip link add guests type bridge
    for address; do ip address add "$address" dev guests; done
    ip link set guests up
    libvirtd --config /etc/libvirt/libvirtd.conf &
    wait $!' sh "$CONF/libvirt" "$STATE/libvirt" "${gateways[@]}"
}
