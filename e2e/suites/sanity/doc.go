// Package sanity runs csi-sanity, the conformance suite of the Kubernetes CSI
// project, against the plugin's real binary on a real API server.
//
// It is a module of its own, so that what csi-sanity brings stays out of the other suites.
// Nothing here may import a package of the plugin: the suite sees its sockets only.
//
// csi-sanity plays neither a kubelet nor a pod, and a volume of its own comes from
// CreateVolume, which a driver of inline volumes lacks. The wrapper stands between it
// and the plugin and adds just that.
package sanity
