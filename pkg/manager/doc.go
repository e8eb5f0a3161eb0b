// Package manager keeps the current state of the ConfigMaps and Secrets that volumes reference. It has a watch for each object, or requests
// it at intervals, as the kubelet's manager does.
//
// It owns which pod's volume references which object, the last state of each object, and its run, which is a reflector or a poller that
// brings the next state. To read an object afresh, it always starts a new run, and ignores what an earlier run still brings. It notifies
// one subscriber of changed objects. Package requests decides when a request is sent. The package must not know what a volume does with an
// object: it doesn't render, write or mount, and it doesn't decide who may read what.
package manager
