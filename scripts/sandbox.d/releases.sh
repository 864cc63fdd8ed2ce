# shellcheck shell=bash disable=SC2034
# What differs between the releases, and the installation of their packages. No other file reads SANDBOX_RELEASE.
#
# A release that this machine's Debian does not have is in a root of its own. IN stands before each of the release's
# commands: nothing, or a chroot. It mounts the state folder, at the same path, in a mount namespace that ends with the
# process: a down has nothing to unmount, and a kill leaves no mount behind.

release() {
  IN=() ROOT=''
  PACKAGES='mariadb-server-core mariadb-client-core rabbitmq-server qemu-utils
    python3-pymysql python3-sqlalchemy-ext python3-waitress
    python3-keystone python3-nova python3-glance python3-neutron python3-placement'
  MACHINE_PACKAGES='mariadb-client-core procps python3-openstackclient'   # for tests, too
  case $SANDBOX_RELEASE in
    zed) # Debian 12
      PORT_OFFSET=0 ;;
    epoxy) # OpenStack 2025.1, Debian 13
      PORT_OFFSET=100 SUITE=trixie ROOT=${SANDBOX_ROOT:=/var/tmp/cloudfn-root-epoxy} ;;
    *) die "SANDBOX_RELEASE is '$SANDBOX_RELEASE': it must be zed or epoxy" ;;
  esac
  [ -n "$ROOT" ] || return 0
  MACHINE_PACKAGES+=' debootstrap'
  # shellcheck disable=SC2016 # for the shell in the namespace
  IN=(unshare --mount sh -euc '
    for d in /proc /dev /tmp "$2"; do mkdir -p "$1$d"; mount --rbind "$d" "$1$d"; done
    root=$1 state=$2; shift 2; exec chroot "$root" env -C "$state" "$@"' sandbox "$ROOT" "$STATE")
}

install() { # install PACKAGE... : those that are missing, with IN
  local missing
  # shellcheck disable=SC2016 # for dpkg-query
  mapfile -t missing < <(printf '%s\n' "$@" | grep -vxFf <(
    "${IN[@]}" dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p'))
  [ ${#missing[@]} -eq 0 ] || "${IN[@]}" bash -c "$(< "$HERE/../apt")" apt "${missing[@]}" || exit 1
}
# shellcheck disable=SC2086
install_on_machine() { local IN=(); install $MACHINE_PACKAGES; }
# shellcheck disable=SC2086
install_packages() {
  [ -n "$ROOT" ] || { install $MACHINE_PACKAGES $PACKAGES $OPTIONAL_PACKAGES; return; }
  install_on_machine
  exec 8>>"$ROOT.lock"; flock 8   # a sandbox in another folder may be making the same root
  [ -e "$ROOT" ] || make_root
  "${IN[@]}" true || die "root cannot mount here: give the container the capability SYS_ADMIN"
  "${IN[@]}" dpkg --configure -a > "$LOG/dpkg.log" 2>&1   # after an installation that was interrupted
  install $PACKAGES $OPTIONAL_PACKAGES
  exec 8>&-
}
make_root() { # from the mirror of this machine's apt
  local mirror
  # shellcheck disable=SC2016 # for apt-get
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Label: Debian' | head -n 1)
  [ -n "$mirror" ] || die "apt knows no mirror of Debian: add one to its sources, and run apt-get update"
  say "making a root of Debian's $SUITE in $ROOT (once, some minutes)"
  rm -rf --one-file-system "$ROOT.new"
  # In a namespace, because it mounts, and may be killed.
  unshare --mount debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$ROOT.new" "$mirror" \
    > "$LOG/debootstrap.log" 2>&1 ||
    die "debootstrap failed ($(last_line "$LOG/debootstrap.log")), see $LOG/debootstrap.log"
  printf '127.0.0.1 localhost\n::1 localhost\n' > "$ROOT.new/etc/hosts"
  printf '#!/bin/sh\nexit 101\n' > "$ROOT.new/usr/sbin/policy-rc.d"   # no package may start a daemon
  chmod 755 "$ROOT.new/usr/sbin/policy-rc.d"
  mv "$ROOT.new" "$ROOT"
  say "root made"
}
