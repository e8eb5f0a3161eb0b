// Package check validates manifests without a cluster: the attributes of refvol's volumes, and
// every ConfigMap and Secret that a workload references. On request it asks an API server which
// of them exist and whether the workload's service account may read them.
//
// It owns which manifests are read, what is a problem, and the form of the report. It must not
// know how a volume is published. pkg/volume knows what attributes mean, and pkg/pod what a
// pod's spec says. The package keeps the names of objects' keys, and no values.
package check
