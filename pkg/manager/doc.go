// Package manager keeps the ConfigMaps and Secrets that volumes reference, each
// as fresh as one watch of the API server makes it.
//
// It owns which pod's volume references which object, the reflector of each
// referenced object, and the last state that the reflector saw. It tells one
// subscriber which reference changed. It must not know what a volume does with an
// object: nothing here renders, writes or mounts, and nothing here decides who may
// read what.
package manager
