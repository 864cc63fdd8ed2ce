# shellcheck shell=bash
# sandbox reset: the snapshot that the first up takes, and how it is put back.

SNAPSHOT=$STATE/snapshot
# The databases, and the files that their rows refer to. The marks of `once` go with them: they record what is seeded.
SNAPSHOT_FOLDERS='mysql glance keystone'

# A pristine state has only what up has made. Its mark outlives an up that failed.
mark_pristine() { touch "$STATE/.pristine"; }

marks() { (cd "$1" && echo done.*); }
take_snapshot() { # of a pristine state, unless the snapshot there already has the same seeds
  [ -e "$STATE/.pristine" ] || return 0
  if [ ! -d "$SNAPSHOT" ] || [ "$(marks "$SNAPSHOT")" != "$(marks "$STATE")" ]; then
    rm -rf "$SNAPSHOT.new"; mkdir "$SNAPSHOT.new"
    # A stopped process changes no file, so this is a data folder as kill -9 leaves it: MariaDB recovers it at its next
    # start. The services only wait. A restart of MariaDB would break their connections.
    (
      read -r pid _ < "$RUN/mariadb.pid"
      trap 'kill -CONT "$pid"' EXIT
      kill -STOP "$pid"; sleep 0.2   # for writes that the kernel has begun
      copy_state "$STATE" "$SNAPSHOT.new"
    ) || die "cannot copy $STATE to $SNAPSHOT.new"
    rm -rf "$SNAPSHOT"; mv "$SNAPSHOT.new" "$SNAPSHOT"
    say "snapshot taken"
  fi
  rm "$STATE/.pristine"
}
resume_mariadb() { # after a take_snapshot that was killed
  local pid
  ! alive mariadb || { read -r pid _ < "$RUN/mariadb.pid"; kill -CONT "$pid"; }
}
copy_state() { # copy_state FROM TO : the marks last, because an interrupted copy must look unseeded
  local d
  for d in $SNAPSHOT_FOLDERS; do
    rm -rf "${2:?}/$d"; cp -a --sparse=always "$1/$d" "$2/$d" || return 1   # InnoDB's files are mostly zeros
  done
  cp -a "$1"/done.* "$2/"
}

reset() {
  if [ -e "$STATE/settings" ]; then
    # In a subshell, because up needs the environment as it is: apt's proxy. What a process would still write is lost
    # anyway.
    (clean_env; STOP='kill' down)
    if [ -d "$SNAPSHOT" ]; then
      rm -rf "$STATE"/done.* "$STATE/test-projects"   # projects that tests have made (testkit.BorrowProject)
      copy_state "$SNAPSHOT" "$STATE" || die "cannot copy $SNAPSHOT to $STATE"
      mark_pristine
      say "snapshot restored"
    else
      say "this sandbox has no snapshot (an older version made it): it is made again, with its settings"
      find "$STATE" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf -- {} +
    fi
  fi
  up
}
