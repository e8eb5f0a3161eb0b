// Package csi serves gRPC: the CSI Identity and Node services for the kubelet, and the registration service with which the kubelet finds
// them.
//
// It owns sockets, interceptors, the form of requests, and the table from failures to codes. It must not know how a volume is published: it
// passes requests to a Publisher.
package csi
