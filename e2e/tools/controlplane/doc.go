// Package controlplane builds, starts and stops a real etcd and a real
// kube-apiserver, linked from their Go modules, for tests that need no kubelet.
//
// It owns two child processes, the port they serve on and one directory; all of
// them end with Stop, and the processes end also when the caller's process dies.
// It needs no root. It knows nothing of refvol.
package controlplane
