// Package faultproxy stands between a client and a real API server and breaks what
// passes, the way networks, load balancers and API servers break it.
//
// It terminates TLS under a certificate of its own and speaks HTTP/2 on both sides, so
// that a fault can hit one request, one event of a watch, or whole connections. It owns
// its listener, the connections and what it has recorded of answers; it knows of the
// Kubernetes API only URLs and the framing of watches in protobuf.
package faultproxy
