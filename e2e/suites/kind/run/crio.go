package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// buildCRIO builds CRI-O from the checkout that the settings name, and returns the directory with all that a node
// needs to run it. Without such a checkout it returns "".
func buildCRIO(ctx context.Context, s *settings, clock stopwatch) (dir string, err error) {
	if s.crio == "" {
		return "", nil
	}
	clock.say("building CRI-O from %s", s.crio)
	dir = filepath.Join(s.cache, "e2e", "crio")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(s.root, "e2e", "node-image", "crio"))); err != nil {
		return "", err
	}
	pinns := filepath.Join(s.crio, "pinns")
	for _, c := range []command{
		{
			// The tags leave out what needs C libraries beside libc.
			dir: s.crio, env: []string{"GOFLAGS=-trimpath -buildvcs=false -mod=mod", "CGO_ENABLED=1"},
			args: []string{
				"go", "build", "-tags", "containers_image_openpgp exclude_graphdriver_btrfs libsubid_off",
				"-ldflags", "-s -w", "-o", filepath.Join(dir, "crio"), "./cmd/crio",
			},
		},
		{args: []string{"make", "--no-print-directory", "-C", pinns}},
		{args: []string{"cp", filepath.Join(s.crio, "bin", "pinns"), dir}},
	} {
		if err := c.quiet(ctx); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// useCRIO has the workers run CRI-O, from a directory that buildCRIO made, with the images of archives and those of the
// node image. The control plane keeps containerd.
func (c *kindCluster) useCRIO(ctx context.Context, s *settings, dir string, archives []string) error {
	nodes, err := c.command("get", "nodes").output(ctx, os.Stderr)
	if err != nil {
		return err
	}
	version := "newest"
	if s.kubernetes != "" {
		version = s.kubernetes
	}
	// The usual node image has none here: CRI-O then pulls what its registry has.
	components, err := filepath.Glob(filepath.Join(s.cache, "kind-node", version, "components-*", "*.tar"))
	if err != nil {
		return err
	}
	for _, node := range strings.Fields(nodes) {
		if strings.Contains(node, "control-plane") {
			continue
		}
		docker := func(args ...string) error {
			return command{env: c.engine.env(), args: append([]string{"docker"}, args...)}.quiet(ctx)
		}
		if err := docker("cp", dir, node+":/crio"); err != nil {
			return err
		}
		install := []string{"exec", node, "/crio/install.sh"}
		for i, archive := range append(components, archives...) {
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
