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
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/sandbox"
)

const (
	namespace = "default"
	// configPath and secretPath are files of the volume.
	configPath = "conf/app.yaml"
	secretPath = "password"
	// promised is how soon a change has to be there.
	promised = 250 * time.Millisecond
	// patience is how long the demo waits before it calls something broken.
	patience = time.Minute
)

const sources = `- configMap:
    name: app
    items: [{key: app.yaml, path: conf/app.yaml, mode: 0440}]
- secret: {name: db}
`

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

// demo is one run. Its steps run one after the other.
type demo struct {
	*harness.Lab
	plugin *harness.Plugin
	volume *harness.Volume

	claims, failed int
}

func run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{}
	// What is running is stopped with its own time, also after a Ctrl-C.
	defer func() { err = errors.Join(err, d.stop()) }()
	steps := []func(context.Context) error{d.start, d.publish, d.change, d.crash}
	titles := []string{
		"Build what is missing, and start etcd, the API server and refvol-plugin",
		"Publish a volume of a ConfigMap and a Secret, as a kubelet would",
		"Change both objects ten times",
		"Kill the plugin, change an object meanwhile, start it again",
	}
	if os.Getenv("KEEP") == "1" {
		steps, titles = append(steps, d.wait), append(titles, "Yours, until Ctrl-C")
	}
	steps, titles = append(steps, d.unpublish), append(titles, "Unpublish")
	begin := time.Now()
	for i, step := range steps {
		fmt.Printf("\n[%d/%d] %s\n", i+1, len(steps), titles[i])
		if err := step(ctx); err != nil {
			return err
		}
	}
	if d.failed > 0 {
		return fmt.Errorf("%d of %d claims do not hold", d.failed, d.claims)
	}
	fmt.Printf("\nPASS: all %d claims hold (%s)\n", d.claims, time.Since(begin).Round(100*time.Millisecond))
	return nil
}

// stop ends what runs and removes what was made, also after a step that failed.
func (d *demo) stop() error {
	var err error
	if d.plugin != nil {
		err = d.plugin.Close()
	}
	if d.Lab != nil {
		err = errors.Join(err, d.Stop())
	}
	return err
}

// claim prints what is claimed and whether it holds: err is nil if it does.
func (d *demo) claim(err error, format string, args ...any) {
	d.claims++
	if err == nil {
		fmt.Printf("  ok    %s\n", fmt.Sprintf(format, args...))
		return
	}
	d.failed++
	fmt.Printf("  FAIL  %s\n        %v\n", fmt.Sprintf(format, args...), err)
}

// since is the time since begin, for people.
func since(begin time.Time) time.Duration { return time.Since(begin).Round(100 * time.Microsecond) }

func (d *demo) start(ctx context.Context) (err error) {
	if d.Lab, err = harness.StartLab(ctx, false, os.Stdout); err != nil {
		return err
	}
	version, err := d.Client().Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server's version: %w", err)
	}
	begin := time.Now()
	d.plugin, err = harness.StartPlugin(ctx, harness.PluginOptions{
		Binary: d.Plugin, Kubeconfig: d.Kubeconfig, Dir: filepath.Join(d.Dir, "node"), Pods: d.ControlPlane, Args: []string{"-v=10"},
	})
	if err == nil {
		fmt.Printf("  kube-apiserver %s; refvol-plugin: ready after %s, with the rights of deploy/base and no other\n", version.GitVersion, since(begin))
	}
	return err
}

func (d *demo) publish(ctx context.Context) error {
	if err := errors.Join(d.set(ctx, configPath, 0), d.set(ctx, secretPath, 0)); err != nil {
		return fmt.Errorf("create the ConfigMap and the Secret: %w", err)
	}
	fmt.Printf("  created ConfigMap %s/app and Secret %s/db\n  volumeAttributes of the pod's volume:\n    sources: |\n", namespace, namespace)
	for line := range strings.Lines(sources) {
		fmt.Print("      " + line)
	}
	d.volume = harness.NewVolume(namespace, "demo", map[string]string{"sources": sources, "defaultMode": "0400"})
	begin := time.Now()
	err := d.plugin.Publish(ctx, d.volume)
	d.claim(err, "NodePublishVolume answered after %s", since(begin))
	if err != nil {
		return errors.New("without a volume there is nothing more to show")
	}
	list := exec.CommandContext(ctx, "ls", "-lAR", ".")
	list.Dir, list.Stdout = d.target(), os.Stdout
	fmt.Println("  what a container sees in the volume:")
	if err := list.Run(); err != nil {
		return fmt.Errorf("list the volume: %w", err)
	}
	d.claim(d.holds(configPath, 0), "%s holds the ConfigMap's value, %q", configPath, value(configPath, 0))
	d.claim(d.holds(secretPath, 0), "%s holds the Secret's value, %d bytes, not printed here", secretPath, len(value(secretPath, 0)))
	d.claim(d.mounts(1), "it is one mount: a tmpfs, read-only, nosuid, nodev, noexec")
	if err = os.WriteFile(filepath.Join(d.target(), "new"), nil, 0o600); errors.Is(err, syscall.EROFS) {
		err = nil
	} else {
		err = fmt.Errorf("the answer was: %w", errors.Join(err, errors.New("not a read-only file system")))
	}
	d.claim(err, "writing there fails: read-only file system")
	return nil
}

func (d *demo) change(ctx context.Context) error {
	var all []time.Duration
	fmt.Println("  from the request to the file that a container reads; the changes come 100 ms apart")
	for i := 1; i <= 10; i++ {
		c, err := d.measure(ctx, configPath, i)
		if err != nil {
			return err
		}
		s, err := d.measure(ctx, secretPath, i)
		if err != nil {
			return err
		}
		all = append(all, c, s)
		fmt.Printf("  %2d  ConfigMap %8s  Secret %8s\n", i, ms(c), ms(s))
	}
	var err error
	if worst := slices.Max(all); worst > promised {
		err = fmt.Errorf("the slowest took %s", worst)
	}
	d.claim(err, "all %d changes were there within %s, half of them within %s", len(all), promised, ms(harness.Median(all)))
	return nil
}

// measure changes the object of a file, and returns how long after the request, and at least after its answer, the file has the value.
func (d *demo) measure(ctx context.Context, path string, i int) (time.Duration, error) {
	// Of a burst the plugin shows the latest state a few times a hundred milliseconds, so that readers can keep up.
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	sent := time.Now()
	err := d.set(ctx, path, i)
	if err == nil {
		err = d.becomes(ctx, path, i)
	}
	return time.Since(sent), err
}

func ms(t time.Duration) string { return fmt.Sprintf("%.1f ms", t.Seconds()*1000) }

func (d *demo) crash(ctx context.Context) error {
	if err := d.plugin.Kill(); err != nil {
		return err
	}
	fmt.Printf("  killed refvol-plugin (pid %d) with SIGKILL\n", d.plugin.PID())
	d.claim(errors.Join(d.holds(configPath, 10), d.holds(secretPath, 10)), "the files are still there, and whole")
	if err := d.set(ctx, configPath, 11); err != nil {
		return err
	}
	fmt.Println("  changed the ConfigMap while no plugin runs")
	begin := time.Now()
	if err := d.plugin.Start(ctx); err != nil {
		return err
	}
	took := since(begin)
	err := d.becomes(ctx, configPath, 11)
	d.claim(err, "started again (ready after %s), it caught up %s after its start", took, since(begin))
	next, err := d.measure(ctx, secretPath, 11)
	d.claim(err, "and is live again: the next change took %s from the request", ms(next))
	d.claim(d.mounts(1), "it is still one mount")
	err = errors.Join(d.plugin.ShownLeaks(ctx), d.plugin.DiskLeaks())
	d.claim(err, "the plugin's log, at -v=10, and its answers hold no value of the Secret")
	return nil
}

// wait tells how to look at what runs, and waits for Ctrl-C.
func (d *demo) wait(ctx context.Context) error {
	repo, err := harness.Repository()
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
		harness.EnterCommand(), d.ControlPlane.Kubeconfig(), filepath.Join(repo, "e2e", "node-image", "kubernetes"),
		d.target(), filepath.Join(d.target(), configPath), d.plugin.LogPath())
	<-ctx.Done()
	return nil
}

func (d *demo) unpublish(ctx context.Context) error {
	// The Ctrl-C that ended a wait must not end what comes after it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	begin := time.Now()
	d.claim(d.plugin.Unpublish(ctx, d.volume), "NodeUnpublishVolume answered after %s, and the target is gone", since(begin))
	d.claim(d.mounts(0), "0 mounts are left")
	d.claim(d.plugin.Terminate(ctx), "the plugin ends on SIGTERM with status 0")
	return nil
}

// value is what a file has in a state of the objects. The password is no secret of anybody's, and found where it leaks.
func value(path string, i int) string {
	if path == configPath {
		return fmt.Sprintf("greeting: hello %d\n", i)
	}
	return fmt.Sprintf("%s-%d", leak.Value, i)
}

// set brings the object of a file into a state.
func (d *demo) set(ctx context.Context, path string, i int) error {
	kind, name, key := "configMap", "app", "app.yaml"
	if path == secretPath {
		kind, name, key = "secret", "db", secretPath
	}
	_, err := harness.PutObject(ctx, d.Client(), namespace, kind, name, map[string]string{key: value(path, i)})
	return err
}

func (d *demo) target() string { return d.plugin.Target(d.volume) }

// holds checks one file of the volume. What it holds instead is not repeated.
func (d *demo) holds(path string, i int) error {
	got, err := os.ReadFile(filepath.Join(d.target(), path))
	if err == nil && string(got) != value(path, i) {
		err = fmt.Errorf("%s holds something else, %d bytes", path, len(got))
	}
	return err
}

func (d *demo) becomes(ctx context.Context, path string, i int) error {
	return harness.Poll(ctx, patience, 200*time.Microsecond, func() error { return d.holds(path, i) })
}

func (d *demo) mounts(want int) error {
	mounts, err := d.plugin.VolumeMounts()
	if err != nil {
		return err
	}
	if len(mounts) != want {
		return fmt.Errorf("%d mounts", len(mounts))
	}
	for _, m := range mounts {
		if m.Type != "tmpfs" || !strings.HasPrefix(m.Options, "ro,nosuid,nodev,noexec") {
			return fmt.Errorf("a %s with %s", m.Type, m.Options)
		}
	}
	return nil
}
