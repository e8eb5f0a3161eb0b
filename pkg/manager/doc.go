// Package manager keeps the ConfigMaps and Secrets that volumes reference. It keeps each of them current by a watch of
// its own, or asks for it at intervals, as the kubelet's manager does.
//
// It owns which pod's volume references which object, the last state of each, and what brings the next one: a run, which
// is a reflector or a poller. "Read it afresh" is always "start a new run": what an earlier run still brings is lost. It
// tells one subscriber which reference changed. When a request is sent is the matter of package requests. The package
// must not know what a volume does with an object: it doesn't render, write or mount, and it doesn't decide who may read
// what.
package manager
