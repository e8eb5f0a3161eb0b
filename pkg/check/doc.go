// Package check looks at manifests before they meet a cluster: it validates the
// attributes of refvol's volumes, lists every ConfigMap and Secret that a workload
// references, and on request asks an API server which of them exist and whether the
// workload's service account may read them.
//
// It owns which manifests are looked at, what counts as a problem, and the form of the
// report. It must not know how a volume is published; what attributes mean is
// pkg/volume's, what a pod's spec references is pkg/podref's. Values of objects are
// never kept, only the names of their keys.
package check
