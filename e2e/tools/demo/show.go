package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// showTree prints every name of a volume as ls -l would, and no content.
func showTree(w io.Writer, indent, dir string) error {
	entries, err := harness.List(dir)
	if err != nil {
		return fmt.Errorf("list the volume: %w", err)
	}
	fmt.Fprintf(w, "%smode        owner  size  name\n", indent)
	for _, e := range entries {
		name := e.Path
		if e.Link != "" {
			name += " -> " + e.Link
		}
		fmt.Fprintf(w, "%s%s  %-5s  %4d  %s\n", indent, e.Mode, fmt.Sprintf("%d:%d", e.UID, e.GID), len(e.Content), name)
	}
	return nil
}

// wait tells how to look at what runs, and waits for Ctrl-C.
func (d *demo) wait(ctx context.Context) error {
	repo, err := harness.Repository()
	if err != nil {
		return err
	}
	enter, err := harness.EnterCommand()
	if err != nil {
		return err
	}
	d.printf(`  All of it is in a sandbox. A shell in there, for what follows:
    %s sh
  export KUBECONFIG=%s
  kubectl, if you have none: go -C %s tool kubectl

  see the volume:      ls -lAR %s
  follow a file:       watch -n0.1 cat %s
  change the object:   kubectl patch configmap app -p '{"data": {"app.yaml": "greeting: from me\n"}}'
  add a key:           kubectl patch secret db -p '{"stringData": {"token": "abc"}}'
  the plugin's log:    tail -f %s
`,
		enter, d.controlPlane.Kubeconfig(), filepath.Join(repo, "e2e", "node-image", "kubernetes"),
		d.target(),
		filepath.Join(d.target(), configPath),
		d.plugin.LogPath())
	<-ctx.Done()
	return nil
}
