#!/bin/busybox sh
# The first program of a machine: makes it ready, runs /parts and turns the machine off. What
# it prints between lines that begin with @ is what a part printed.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp
mount -t proc none /proc
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
echo "@kernel $(uname -r)"
. /parts
echo @off
poweroff -f
