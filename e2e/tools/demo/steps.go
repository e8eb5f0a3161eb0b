package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
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

func (d *demo) publish(ctx context.Context) error {
	client := d.controlPlane.Client().CoreV1()
	if _, err := client.ConfigMaps(namespace).Create(ctx, configMap(0), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the ConfigMap: %w", err)
	}
	if _, err := client.Secrets(namespace).Create(ctx, secret(0), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the Secret: %w", err)
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
	d.claim(d.holds(configPath, config(0)), "%s holds the ConfigMap's value, %q", configPath, config(0))
	d.claim(d.holds(secretPath, password(0)), "%s holds the Secret's value, %d bytes, not printed here", secretPath, len(password(0)))
	d.claim(d.mounts(1), "it is one mount: a tmpfs, read-only, nosuid, nodev, noexec")
	d.claim(d.readOnly(), "writing there fails: read-only file system")
	return nil
}

func (d *demo) change(ctx context.Context) error {
	var all []time.Duration
	fmt.Println("  from the request to the file that a container reads; the changes come 100 ms apart")
	for i := 1; i <= 10; i++ {
		c, err := d.measure(ctx, configPath, config(i), func() error { return d.setConfigMap(ctx, i) })
		if err != nil {
			return err
		}
		s, err := d.measure(ctx, secretPath, password(i), func() error { return d.setSecret(ctx, i) })
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

// measure writes, and returns how long after that a file of the volume holds want. The file is read all the time from
// before the write on, by a goroutine that ends before measure does.
func (d *demo) measure(ctx context.Context, path, want string, write func() error) (time.Duration, error) {
	// Of a burst the plugin shows the latest state a few times a hundred milliseconds, so that readers can keep up.
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	var at time.Time
	seen := make(chan error, 1)
	go func() {
		err := d.becomes(ctx, path, want)
		at = time.Now()
		seen <- err
	}()
	sent := time.Now()
	err := errors.Join(write(), <-seen)
	return at.Sub(sent), err
}

func ms(t time.Duration) string { return fmt.Sprintf("%.1f ms", t.Seconds()*1000) }

func (d *demo) crash(ctx context.Context) error {
	if err := d.plugin.Kill(); err != nil {
		return err
	}
	fmt.Printf("  killed refvol-plugin (pid %d) with SIGKILL\n", d.plugin.PID())
	d.claim(errors.Join(d.holds(configPath, config(10)), d.holds(secretPath, password(10))), "the files are still there, and whole")
	if err := d.setConfigMap(ctx, 11); err != nil {
		return err
	}
	fmt.Println("  changed the ConfigMap while no plugin runs")
	begin := time.Now()
	if err := d.plugin.Start(ctx); err != nil {
		return err
	}
	took := since(begin)
	err := d.becomes(ctx, configPath, config(11))
	d.claim(err, "started again (ready after %s), it caught up %s after its start", took, since(begin))
	next, err := d.measure(ctx, secretPath, password(11), func() error { return d.setSecret(ctx, 11) })
	d.claim(err, "and is live again: the next change took %s from the request", ms(next))
	d.claim(d.mounts(1), "it is still one mount")
	err = errors.Join(d.plugin.ShownLeaks(ctx), d.plugin.DiskLeaks())
	d.claim(err, "the plugin's log, at -v=10, and its answers hold no value of the Secret")
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

func config(i int) string { return fmt.Sprintf("greeting: hello %d\n", i) }

// password is what the demo's Secret holds; it is no secret of anybody's, and found where
// it leaks.
func password(i int) string { return fmt.Sprintf("%s-%d", leak.Value, i) }

func configMap(i int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: map[string]string{"app.yaml": config(i)}}
}

func secret(i int) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{secretPath: password(i)}}
}

func (d *demo) setConfigMap(ctx context.Context, i int) error {
	_, err := d.controlPlane.Client().CoreV1().ConfigMaps(namespace).Update(ctx, configMap(i), metav1.UpdateOptions{})
	return err
}

func (d *demo) setSecret(ctx context.Context, i int) error {
	_, err := d.controlPlane.Client().CoreV1().Secrets(namespace).Update(ctx, secret(i), metav1.UpdateOptions{})
	return err
}

func (d *demo) target() string { return d.plugin.Target(d.volume) }

// holds checks one file of the volume. What it holds instead is not repeated.
func (d *demo) holds(path, want string) error {
	got, err := os.ReadFile(filepath.Join(d.target(), path))
	if err == nil && string(got) != want {
		err = fmt.Errorf("%s holds something else, %d bytes", path, len(got))
	}
	return err
}

func (d *demo) becomes(ctx context.Context, path, want string) error {
	return harness.Poll(ctx, patience, 200*time.Microsecond, func() error { return d.holds(path, want) })
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

func (d *demo) readOnly() error {
	err := os.WriteFile(filepath.Join(d.target(), "new"), nil, 0o600)
	if errors.Is(err, syscall.EROFS) {
		return nil
	}
	return fmt.Errorf("the answer was: %w", errors.Join(err, errors.New("not a read-only file system")))
}
