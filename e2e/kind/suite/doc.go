// Package suite is the end-to-end tier: what a pod's container sees of refvol's
// volumes, through a real kubelet and container runtime.
//
// It needs a cluster with the plugin installed, an admin's kubeconfig in KUBECONFIG,
// and the probe's image on the nodes (REFVOL_PROBE_IMAGE, by default
// localhost/refvol/probe:e2e). The runner beside it provides all of them. It knows
// the plugin by its manifests and its volumes only, and imports nothing of it.
//
// A test that doesn't call Parallel runs alone: it measures a time, counts watches of
// the whole cluster, or takes the plugin down.
package suite
