// Package check validates manifests without a cluster: the attributes of refvol's volumes, and every ConfigMap and Secret that a workload
// references. On request it asks an API server which of them exist and whether the workload's service account may read them.
// For the pods of a namespace, it asks by dry runs what a label would change.
//
// It owns which manifests are read, what counts as a problem, and the format of the report. It must not know how a volume is published.
// Package volume knows the meaning of attributes, and package pod that of a pod's spec. This package keeps the names of objects' keys, but
// no values.
package check
