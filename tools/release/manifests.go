package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// install is a set of components that a release has rendered.
type install struct {
	name       string
	components []string
}

// installs are one for each identity, as docs/install.md has them. Other sets need kustomize or
// Helm.
func installs() []install {
	return []install{
		{"refvol-node-identity", []string{"node-identity"}},
		{"refvol-pod-identity", []string{"pod-identity"}},
		{"refvol", nil},
	}
}

// writeManifests renders the installs with the release's image.
func writeManifests(o *options, dir string) error {
	for _, i := range installs() {
		manifests, err := i.render(o)
		if err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
		if err := write(dir, i.name+".yaml", manifests); err != nil {
			return err
		}
	}
	return nil
}

func (i install) render(o *options) ([]byte, error) {
	top, err := os.MkdirTemp("", "refvol-render-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(top)
	// The renderer takes links away before it looks for what is below, and refuses absolute paths.
	if top, err = filepath.EvalSymlinks(top); err != nil {
		return nil, err
	}
	root, err := filepath.EvalSymlinks(o.root)
	if err != nil {
		return nil, err
	}
	deploy, err := filepath.Rel(top, filepath.Join(root, "deploy"))
	if err != nil {
		return nil, err
	}
	var components []string
	for _, name := range i.components {
		components = append(components, filepath.Join(deploy, "components", name))
	}
	text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\nimages: [{name: %s, newTag: %s}]\n",
		filepath.Join(deploy, "base"), strings.Join(components, ", "), imageName, o.version)
	if err := os.WriteFile(filepath.Join(top, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), top)
	if err != nil {
		return nil, err
	}
	return resources.AsYaml()
}
