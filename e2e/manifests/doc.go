// Package manifests tests what deploy/ installs on a real API server, as users apply it:
// with kubectl. It has two parts: what the plugin's account may do with each overlay,
// held against testdata/, and what the admission policy says to pods, held against what
// the plugin says.
//
// The package is tests only.
package manifests
