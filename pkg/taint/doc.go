// Package taint removes the taint that keeps pods away from a node until the driver is
// registered there.
//
// It owns which taint that is and the change of the Node. It must not know how the kubelet
// confirms a registration.
package taint
