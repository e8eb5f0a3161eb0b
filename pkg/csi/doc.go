// Package csi speaks gRPC: the CSI Identity and Node services to the kubelet, and
// the registration service by which the kubelet finds them.
//
// It owns sockets, interceptors, the form of requests and the table that turns a
// failure into a code. What a publish is, it must not know: it hands requests to a
// Publisher.
package csi
