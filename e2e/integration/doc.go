// Package integration tests the plugin's real binary, built with the race
// detector, against a real etcd and API server, over its real socket and with real
// mounts. The tests play the kubelet. They need no root where user namespaces work.
package integration
