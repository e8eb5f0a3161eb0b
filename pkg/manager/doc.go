// Package manager keeps the ConfigMaps and Secrets that volumes reference. It keeps each of
// them current by a watch of its own, or asks for it at intervals.
//
// It owns which pod's volume references which object, the reflector or the requests of each
// referenced object, and the last state that they brought. It tells one subscriber which
// reference changed. It must not know what a volume does with an object: it doesn't render,
// write or mount, and it doesn't decide who may read what.
//
// The references are counted apart from that, for every change detection. A store makes the objects: an item has
// a reflector, and a polled object sends requests.
package manager
