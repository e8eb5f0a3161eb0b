// Package fuzz drives the plugin's own code over its real sockets, with real mounts, by
// requests that nobody sane would send. What its tests look for is one thing: that nothing is
// created, changed, unmounted or deleted but at the target of a volume.
package fuzz
