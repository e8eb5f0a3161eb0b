#!/bin/busybox sh
# shellcheck shell=dash
# The first program of a machine: makes it ready, runs /parts and turns the machine off. What
# it prints between lines that begin with @ is what a part printed.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp
mount -t proc none /proc
# Nothing here lasts: all of this machine is the sandbox that tests ask for (internal/sandbox).
REFVOL_SANDBOX=$(readlink /proc/self/ns/mnt)
export REFVOL_SANDBOX REFVOL_WITHOUT=strace
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs -o mode=1777 none /tmp
mount -t cgroup2 none /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
ulimit -n 1048576

# In the order in which they need each other.
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net; do
  [ ! -e "/modules/$module.ko" ] || insmod "/modules/$module.ko"
done
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
printf '\n@kernel %s\n' "$(uname -r)"
if [ -e /policy ]; then
  mount -t selinuxfs none /sys/fs/selinux
  dd if=/policy of=/sys/fs/selinux/load bs=64M 2>/dev/null # the kernel wants it in one piece
  # Everything runs in the domain of a privileged container, which is what the plugin's is. Only
  # before SELinux enforces may this program start it.
  sh -c 'printf %s "$0" >/proc/self/attr/exec && exec sh -c "echo 1 >/sys/fs/selinux/enforce; . /parts"' \
    system_u:system_r:spc_t:s0-s0:c0.c1023
  dmesg | grep 'avc:  denied'
else
  . /parts
fi
printf '\n@off\n'
poweroff -f
