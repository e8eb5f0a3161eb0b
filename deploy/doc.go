// Package deploy holds the manifests that install refvol, and nothing but tests of
// them: what they say must be what the plugin needs, no more and no less.
//
// It is a module of its own, so that the renderers of kustomize and Helm and their
// dependencies stay out of the plugin's module.
package deploy
