// Package suite is the end-to-end tier: what a pod's container sees of refvol's
// volumes, through a real kubelet and container runtime.
//
// The runner beside it makes the cluster, installs the plugin and provides what the environment names: images,
// programs and manifests. It knows the plugin by its manifests and its volumes only, and imports nothing of it.
//
// A test that doesn't call Parallel runs alone: it measures a time, asks about all nodes,
// or takes a node down. Those that take the plugin or the
// kubelet of one node down and measure nothing run beside the others on
// the node of the control plane, see takeNode and shareNode. As a kubelet is down for a moment there, what other tests ask of a pod on
// that node must be asked again.
//
// Some tests restart a node or its kubelet: the nodes are containers of the engine that DOCKER_HOST names.
package suite
