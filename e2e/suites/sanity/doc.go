// Package sanity runs csi-sanity, the conformance suite of the Kubernetes CSI
// project, against the plugin's real binary on a real API server.
//
// It is a module of its own: csi-sanity needs a release of the CSI specification that
// no longer has the volume condition as the kubelet speaks it, and the plugin is built
// from the root module, with the release that has it. So nothing here may import a
// package of the plugin.
//
// csi-sanity plays neither a kubelet nor a pod, and a volume of its own comes from
// CreateVolume, which a driver of inline volumes lacks. The wrapper stands between it
// and the plugin and adds just that.
package sanity
