package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// demo is one run. Its steps run one after the other.
type demo struct {
	out  io.Writer
	keep bool

	dir          string
	binary       string
	controlPlane *controlplane.ControlPlane
	plugin       *harness.Plugin
	volume       *harness.Volume
	// watches is how many watches of ConfigMaps and of Secrets the API server had
	// open before the plugin came.
	watches int

	claims, failed int
}

func newDemo(out io.Writer, keep bool) *demo { return &demo{out: out, keep: keep} }

// step is one part of the demo.
type step struct {
	title string
	run   func(context.Context) error
}

func (d *demo) run(ctx context.Context) error {
	begin := time.Now()
	steps := []step{
		{"Build what is missing", d.build},
		{"Start etcd, the API server and refvol-plugin", d.start},
		{"Publish a volume of a ConfigMap and a Secret, as a kubelet would", d.publish},
		{"Change both objects ten times", d.change},
		{"Kill the plugin, change an object meanwhile, start it again", d.crash},
	}
	if d.keep {
		steps = append(steps, step{"Yours, until Ctrl-C", d.wait})
	}
	steps = append(steps, step{"Unpublish", d.unpublish})
	for i, s := range steps {
		d.printf("\n[%d/%d] %s\n", i+1, len(steps), s.title)
		if err := s.run(ctx); err != nil {
			return err
		}
	}
	if d.failed > 0 {
		return fmt.Errorf("%d of %d claims do not hold", d.failed, d.claims)
	}
	d.printf("\nPASS: all %d claims hold (%s)\n", d.claims, time.Since(begin).Round(100*time.Millisecond))
	return nil
}

// stop ends what runs and removes what was made, also after a step that failed.
func (d *demo) stop() error {
	var err error
	if d.plugin != nil {
		err = d.plugin.Close()
	}
	if d.controlPlane != nil {
		err = errors.Join(err, d.controlPlane.Stop())
	}
	if d.dir != "" {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}

func (d *demo) build(ctx context.Context) error {
	var err error
	if d.dir, err = os.MkdirTemp("", "refvol-demo-"); err != nil {
		return err
	}
	progress := indented{d.out}
	if _, err = harness.BuildControlPlane(ctx, progress); err != nil {
		return err
	}
	d.printf("  etcd and kube-apiserver: built\n")
	if d.binary, err = harness.BuildPlugin(ctx, d.dir, false, progress); err != nil {
		return err
	}
	d.printf("  refvol-plugin: built\n")
	return nil
}

func (d *demo) start(ctx context.Context) error {
	begin := time.Now()
	var err error
	if d.controlPlane, err = harness.StartControlPlane(ctx, indented{d.out}); err != nil {
		return err
	}
	version, err := d.controlPlane.Client().Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server's version: %w", err)
	}
	d.printf("  etcd and kube-apiserver %s: ready after %s\n", version.GitVersion, since(begin))

	kubeconfig := filepath.Join(d.dir, "plugin.kubeconfig")
	if _, err := harness.GrantPlugin(ctx, d.controlPlane, kubeconfig); err != nil {
		return err
	}
	if d.watches, err = d.openWatches(ctx); err != nil {
		return err
	}
	begin = time.Now()
	d.plugin, err = harness.StartPlugin(ctx, harness.PluginOptions{
		Binary: d.binary, Kubeconfig: kubeconfig, Dir: filepath.Join(d.dir, "node"), Args: []string{"-v=10"},
	})
	if err != nil {
		return err
	}
	d.printf("  refvol-plugin: ready after %s, with the rights of deploy/base and no other\n", since(begin))
	return nil
}

// openWatches counts the watches of both kinds.
func (d *demo) openWatches(ctx context.Context) (int, error) {
	configMaps, err := d.controlPlane.OpenWatches(ctx, "configmaps")
	if err != nil {
		return 0, err
	}
	secrets, err := d.controlPlane.OpenWatches(ctx, "secrets")
	return configMaps + secrets, err
}

// claim prints what is claimed and whether it holds: err is nil if it does.
func (d *demo) claim(err error, format string, args ...any) {
	d.claims++
	verdict := "ok  "
	if err != nil {
		d.failed++
		verdict = "FAIL"
	}
	d.printf("  %s  %s\n", verdict, fmt.Sprintf(format, args...))
	if err != nil {
		d.printf("        %v\n", err)
	}
}

func (d *demo) printf(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

// since is the time since begin, for people.
func since(begin time.Time) time.Duration {
	took := time.Since(begin)
	if took > time.Second {
		return took.Round(100 * time.Millisecond)
	}
	return took.Round(time.Millisecond)
}

// indented puts the lines of a build's progress below the step's title.
type indented struct{ w io.Writer }

func (i indented) Write(line []byte) (int, error) {
	_, err := fmt.Fprintf(i.w, "  %s", line)
	return len(line), err
}
