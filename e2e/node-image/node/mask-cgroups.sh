#!/bin/sh
# The first entrypoint of a node. With cgroup v1, systemd mounts every controller
# that /proc/cgroups lists; those that the engine didn't mount for this container
# would come up as hierarchies that all nodes share, with each other's pods in
# them. So systemd is shown only the controllers that are mounted. kind's
# undo-mount-hacks.service takes the mask off again once systemd is up.
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
  while read -r controller rest; do
    case $controller in
      '#'*) ;;
      *) mountpoint -q "/sys/fs/cgroup/$controller" || continue ;;
    esac
    printf '%s\t%s\n' "$controller" "$rest"
  done </proc/cgroups >/kind/mounted-cgroups
  mount --bind /kind/mounted-cgroups /proc/cgroups
fi
exec "$@"
