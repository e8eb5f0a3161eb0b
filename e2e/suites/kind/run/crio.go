package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// crio is CRI-O for the nodes.
type crio struct {
	// dir has what a node needs to run it.
	dir string
	// archives are those of the node image, of which containerd has kept only what containers need.
	archives []string
}

// buildCRIO builds CRI-O from the checkout that the settings name, for nodes of an image. Without a checkout it returns nil.
func buildCRIO(ctx context.Context, s *settings, nodeImage string, clock stopwatch) (*crio, error) {
	if s.crio == "" {
		return nil, nil
	}
	clock.say("building CRI-O from %s", s.crio)
	built := &crio{dir: filepath.Join(s.cache, "e2e", "crio")}
	if err := os.RemoveAll(built.dir); err != nil {
		return nil, err
	}
	if err := os.CopyFS(built.dir, os.DirFS(filepath.Join(s.root, "e2e", "node-image", "crio"))); err != nil {
		return nil, err
	}
	for _, c := range []command{
		{
			// Static, as this machine may have a newer libc than the nodes. The tags leave out what needs other C libraries.
			dir: s.crio, env: []string{"CGO_ENABLED=1", "GOFLAGS=-trimpath -buildvcs=false"},
			args: []string{
				"go", "build", "-tags", "containers_image_openpgp exclude_graphdriver_btrfs netgo osusergo",
				"-ldflags", "-s -w -extldflags -static", "-o", filepath.Join(built.dir, "crio"), "./cmd/crio",
			},
		},
		{args: []string{"make", "--no-print-directory", "-C", filepath.Join(s.crio, "pinns")}},
		{args: []string{"cp", filepath.Join(s.crio, "bin", "pinns"), built.dir}},
	} {
		if err := c.quiet(ctx); err != nil {
			return nil, err
		}
	}
	if !strings.HasPrefix(nodeImage, "localhost/") {
		return built, nil // CRI-O pulls from the registry of that image
	}
	version := "newest"
	if s.kubernetes != "" {
		version = s.kubernetes
	}
	var err error
	built.archives, err = filepath.Glob(filepath.Join(s.cache, "kind-node", version, "components-*", "*.tar"))
	return built, err
}

// useCRIO switches the workers to CRI-O, with the images of its archives and of others. The control plane keeps containerd.
func (c *kindCluster) useCRIO(ctx context.Context, crio *crio, archives []string) error {
	nodes, err := c.command("get", "nodes").output(ctx, os.Stderr)
	if err != nil {
		return err
	}
	docker := func(args ...string) error {
		return command{env: c.engine.env(), args: append([]string{"docker"}, args...)}.quiet(ctx)
	}
	for _, node := range strings.Fields(nodes) {
		if strings.Contains(node, "control-plane") {
			continue
		}
		if err := docker("cp", crio.dir, node+":/crio"); err != nil {
			return err
		}
		install := []string{"exec", node, "/crio/install.sh"}
		for i, archive := range slices.Concat(crio.archives, archives) {
			inside := fmt.Sprintf("/crio/image-%d.tar", i)
			if err := docker("cp", archive, node+":"+inside); err != nil {
				return err
			}
			install = append(install, inside)
		}
		if err := docker(install...); err != nil {
			return err
		}
	}
	return nil
}
