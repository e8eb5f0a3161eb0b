// Package integration tests the plugin's real binary, built with the race detector but
// where it is killed a hundred times or timed, against a real etcd and API server, over
// its real socket and with real mounts. The tests play the kubelet. They need no root
// where user namespaces work.
package integration
