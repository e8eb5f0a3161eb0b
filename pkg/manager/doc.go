// Package manager keeps the ConfigMaps and Secrets that volumes reference, each as
// fresh as its strategy makes it: by one watch of the API server for each object, or by
// asking for it now and then.
//
// It owns which pod's volume references which object, the reflector or the requests of
// each referenced object, and the last state that they brought. It tells one subscriber
// which reference changed. It must not know what a volume does with an object: nothing
// here renders, writes or mounts, and nothing here decides who may read what.
//
// References are counted in one place, for every strategy; a store makes what is known
// of an object: an item, which a reflector drives, or a polled one, which fetches.
package manager
