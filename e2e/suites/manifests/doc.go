// Package manifests tests what deploy/ installs on a real API server, as users apply it:
// with kubectl. It has four parts: what the plugin's account may do with each set of
// components, held against testdata/, and what the startup taint's policy lets it do to Nodes;
// what the admission policies say to pods, held against what the plugin says; what the component
// that sets readOnly makes of pods; and what live namespaces make of them.
//
// The package is tests only.
package manifests
