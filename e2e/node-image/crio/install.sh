#!/bin/bash
# Usage: install.sh ARCHIVE...
# Runs on a worker of a kind cluster, and replaces containerd with CRI-O there. crio, pinns and runc-crio are beside it. It imports
# the archives of images, for CRI-O doesn't see containerd's images, and removes them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export DEBIAN_FRONTEND=noninteractive

apt-get -qq update
apt-get -qq -y --no-install-recommends install conmon jq skopeo >/dev/null
install -m 755 "$here"/{crio,pinns,runc-crio} /usr/local/bin/

pause=$(sed -n 's/.*sandbox_image = "\(.*\)"/\1/p' /etc/containerd/config.toml)
mkdir -p /etc/crio /etc/containers
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
cat >/etc/crio/crio.conf <<END
[crio]
storage_driver = "overlay"
[crio.runtime]
default_runtime = "runc"
# As the kubelet that kubeadm configured has it on this machine.
cgroup_manager = "$(grep -q 'cgroupDriver: systemd' /var/lib/kubelet/config.yaml && echo systemd || echo cgroupfs)"
conmon_cgroup = "pod"
pinns_path = "/usr/local/bin/pinns"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/local/bin/runc-crio"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"
[crio.image]
pause_image = "$pause"
[crio.network]
plugin_dirs = ["/opt/cni/bin"]
END
cat >/etc/systemd/system/crio.service <<END
[Service]
Type=notify
ExecStart=/usr/local/bin/crio
Restart=always
LimitNOFILE=infinity
Delegate=yes
KillMode=process
[Install]
WantedBy=multi-user.target
END

for archive in "$@"; do
  names=$(tar -xOf "$archive" manifest.json | jq -r '.[].RepoTags[]')
  [ -n "$names" ]
  for name in $names; do
    skopeo copy --quiet "docker-archive:$archive:$name" "containers-storage:$name"
  done
  rm "$archive"
done

systemctl stop kubelet
tasks=$(ctr -n k8s.io tasks ls -q)
for task in $tasks; do
  ctr -n k8s.io tasks kill --signal KILL "$task" || true # it may have ended
done
systemctl -q disable --now containerd
grep -rl containerd.sock /var/lib/kubelet/*.yaml /var/lib/kubelet/*.env |
  xargs sed -i 's#unix:///run/containerd/containerd.sock#unix:///var/run/crio/crio.sock#'
systemctl daemon-reload
systemctl -q enable --now crio
systemctl start kubelet
