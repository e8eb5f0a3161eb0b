// Package fleet tests kubectl-refvol with many plugins: real processes with real mounts, a real API server,
// and Kubernetes' own server of port-forwards for the nodes' kubelets.
package fleet
