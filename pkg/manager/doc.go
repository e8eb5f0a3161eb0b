// Package manager keeps the current state of the ConfigMaps and Secrets that volumes reference. It has a watch for each object, or requests
// it at intervals, as the kubelet's manager does.
//
// It owns which pod's volume references which object, the last answer about each object, and its run, which is a watcher or a poller that
// brings the next answer. A failed request takes nothing away, and neither does one that is sent for a new pod: only that pod waits for it.
// It notifies one subscriber of changed objects. Package requests decides when a request is sent. The package must not know what a volume
// does with an object: it doesn't render, write or mount, and it doesn't decide who may read what.
package manager
