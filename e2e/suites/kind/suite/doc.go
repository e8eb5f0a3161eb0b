// Package suite is the end-to-end tier: what a pod's container sees of refvol's
// volumes, through a real kubelet and container runtime.
//
// It needs a cluster with the plugin installed, an admin's kubeconfig in KUBECONFIG,
// and the probe's image on the nodes (REFVOL_PROBE_IMAGE, by default
// localhost/refvol/probe:e2e). That of an upgrade needs kubectl (REFVOL_KUBECTL), and the
// manifests of two versions, with images that the nodes have (REFVOL_UPGRADES). Those of recipes and
// examples take their own images, unless the nodes have one with a shell (REFVOL_SHELL_IMAGE). That of
// the gate for pipelines needs an image of kubectl-refvol (REFVOL_GATE_IMAGE), and is left out without one.
// The runner beside it provides all of them. It knows the plugin by its manifests and its
// volumes only, and imports nothing of it.
//
// A test that doesn't call Parallel runs alone: it measures a time, asks about all nodes,
// or takes a node down. Those that take the plugin or the
// kubelet of one node down and measure nothing run beside the others, one at a time, on
// the node of the control plane, see takeNode.
//
// Some tests restart a node or its kubelet. For these the nodes are containers of the
// engine that DOCKER_HOST names, as kind's are. Where they are not, REFVOL_NODES_OUT_OF_REACH is
// set, and the tests that need the nodes are left out. REFVOL_LEFT_OUT names a file that gets a line
// for each test that is left out.
package suite
