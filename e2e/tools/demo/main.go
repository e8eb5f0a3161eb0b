// Command demo shows refvol's main job on this machine: a ConfigMap and a Secret
// become live files, on a real API server and through the plugin's real binary,
// with the demo in the place of a kubelet. Everything that it says it verifies; it
// ends with status 0 only if all of it was so.
//
// It needs no cluster, no container engine, and no root where the kernel lets users
// make user namespaces. With KEEP=1 in the environment it leaves everything running
// until Ctrl-C, for a look by hand.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/sandbox"
)

func main() {
	err := sandbox.Check()
	if err == nil {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{}
	// What is running is stopped with its own time, also after a Ctrl-C.
	defer func() { err = errors.Join(err, d.stop()) }()
	return d.run(ctx, os.Getenv("KEEP") == "1")
}

// demo is one run. Its steps run one after the other.
type demo struct {
	dir          string
	controlPlane *controlplane.ControlPlane
	plugin       *harness.Plugin
	volume       *harness.Volume

	claims, failed int
}

// step is one part of the demo.
type step struct {
	title string
	run   func(context.Context) error
}

func (d *demo) run(ctx context.Context, keep bool) error {
	begin := time.Now()
	steps := []step{
		{"Build what is missing, and start etcd, the API server and refvol-plugin", d.start},
		{"Publish a volume of a ConfigMap and a Secret, as a kubelet would", d.publish},
		{"Change both objects ten times", d.change},
		{"Kill the plugin, change an object meanwhile, start it again", d.crash},
	}
	if keep {
		steps = append(steps, step{"Yours, until Ctrl-C", d.wait})
	}
	steps = append(steps, step{"Unpublish", d.unpublish})
	for i, s := range steps {
		fmt.Printf("\n[%d/%d] %s\n", i+1, len(steps), s.title)
		if err := s.run(ctx); err != nil {
			return err
		}
	}
	if d.failed > 0 {
		return fmt.Errorf("%d of %d claims do not hold", d.failed, d.claims)
	}
	fmt.Printf("\nPASS: all %d claims hold (%s)\n", d.claims, time.Since(begin).Round(100*time.Millisecond))
	return nil
}

func (d *demo) start(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "refvol-demo-"); err != nil {
		return err
	}
	binary, err := harness.BuildPlugin(ctx, d.dir, false, os.Stdout)
	if err != nil {
		return err
	}
	if d.controlPlane, err = harness.StartControlPlane(ctx, os.Stdout); err != nil {
		return err
	}
	version, err := d.controlPlane.Client().Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server's version: %w", err)
	}
	kubeconfig := filepath.Join(d.dir, "plugin.kubeconfig")
	if _, err := harness.GrantPlugin(ctx, d.controlPlane, kubeconfig); err != nil {
		return err
	}
	begin := time.Now()
	d.plugin, err = harness.StartPlugin(ctx, harness.PluginOptions{
		Binary: binary, Kubeconfig: kubeconfig, Dir: filepath.Join(d.dir, "node"), Pods: d.controlPlane, Args: []string{"-v=10"},
	})
	if err == nil {
		fmt.Printf("  kube-apiserver %s; refvol-plugin: ready after %s, with the rights of deploy/base and no other\n", version.GitVersion, since(begin))
	}
	return err
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

// claim prints what is claimed and whether it holds: err is nil if it does.
func (d *demo) claim(err error, format string, args ...any) {
	d.claims++
	verdict := "ok  "
	if err != nil {
		d.failed++
		verdict = "FAIL"
	}
	fmt.Printf("  %s  %s\n", verdict, fmt.Sprintf(format, args...))
	if err != nil {
		fmt.Printf("        %v\n", err)
	}
}

// since is the time since begin, for people.
func since(begin time.Time) time.Duration { return time.Since(begin).Round(100 * time.Microsecond) }

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
	fmt.Printf(`  All of it is in a sandbox. A shell in there, for what follows:
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
		d.target(), filepath.Join(d.target(), configPath), d.plugin.LogPath())
	<-ctx.Done()
	return nil
}
