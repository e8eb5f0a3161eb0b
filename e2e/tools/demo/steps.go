package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: map[string]string{"app.yaml": config(0)}}
	if _, err := client.ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the ConfigMap: %w", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{secretPath: password(0)}}
	if _, err := client.Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the Secret: %w", err)
	}
	d.printf("  created ConfigMap %s/app and Secret %s/db\n  volumeAttributes of the pod's volume:\n    sources: |\n", namespace, namespace)
	for line := range strings.Lines(sources) {
		d.printf("      %s", line)
	}
	d.volume = harness.NewVolume(namespace, "demo", map[string]string{"sources": sources, "defaultMode": "0400"})
	begin := time.Now()
	err := d.plugin.Publish(ctx, d.volume)
	d.claim(err, "NodePublishVolume answered after %s", since(begin))
	if err != nil {
		return errors.New("without a volume there is nothing more to show")
	}
	d.printf("  what a container sees in the volume:\n")
	if err := showTree(d.out, "    ", d.target()); err != nil {
		return err
	}
	d.claim(d.holds(configPath, config(0)), "%s holds the ConfigMap's value, %q", configPath, config(0))
	d.claim(d.holds(secretPath, password(0)), "%s holds the Secret's value, %d bytes, not printed here", secretPath, len(password(0)))
	d.claim(d.modes(map[string]fs.FileMode{configPath: 0o440, secretPath: 0o400}), "modes are those that were asked for")
	d.claim(d.mounts(1), "it is one mount: a tmpfs, read-only, nosuid, nodev, noexec")
	d.claim(d.readOnly(), "writing there fails: read-only file system")
	d.claim(d.watchesOpen(ctx, 2), "the API server has two watches more than before, one for each object")
	return nil
}

func (d *demo) change(ctx context.Context) error {
	var configMaps, secrets []latency
	d.printf("  %8s  %28s  %28s\n", "", "ConfigMap", "Secret")
	d.printf("  %8s  %14s %13s  %14s %13s\n", "change", "from request", "from answer", "from request", "from answer")
	for i := 1; i <= 10; i++ {
		if err := pause(ctx); err != nil {
			return err
		}
		c, err := d.measure(ctx, configPath, config(i), func() error { return d.setConfigMap(ctx, config(i)) })
		if err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
		s, err := d.measure(ctx, secretPath, password(i), func() error { return d.setSecret(ctx, password(i)) })
		if err != nil {
			return err
		}
		configMaps, secrets = append(configMaps, c), append(secrets, s)
		d.printf("  %8d  %14s %13s  %14s %13s\n", i, ms(c.request), ms(c.answer), ms(s.request), ms(s.answer))
	}
	d.printf("  the time from sending the write, and from its acknowledgement, to the file that a container reads;\n  the changes come 100 ms apart\n")
	all := append(configMaps, secrets...)
	d.printf("  from request: p50 %s, max %s; from answer: p50 %s, max %s\n",
		ms(median(all, latency.fromRequest)), ms(slowest(all, latency.fromRequest)),
		ms(median(all, latency.fromAnswer)), ms(slowest(all, latency.fromAnswer)))
	var err error
	if worst := slowest(all, latency.fromRequest); worst > promised {
		err = fmt.Errorf("the slowest took %s", worst)
	}
	d.claim(err, "all 20 changes were there within %s of the request", promised)
	return nil
}

// pause keeps the changes apart: of a burst the plugin shows the latest state a few
// times a hundred milliseconds, so that readers can keep up.
func pause(ctx context.Context) error {
	select {
	case <-time.After(100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *demo) crash(ctx context.Context) error {
	if err := d.plugin.Kill(); err != nil {
		return err
	}
	d.printf("  killed refvol-plugin (pid %d) with SIGKILL\n", d.plugin.PID())
	d.claim(errors.Join(d.holds(configPath, config(10)), d.holds(secretPath, password(10))), "the files are still there, and whole")
	if err := d.setConfigMap(ctx, config(11)); err != nil {
		return err
	}
	d.printf("  changed the ConfigMap while no plugin runs\n")
	begin := time.Now()
	if err := d.plugin.Start(ctx); err != nil {
		return err
	}
	took := since(begin)
	err := d.becomes(ctx, configPath, config(11))
	d.claim(err, "started again (ready after %s), it caught up %s after its start", took, since(begin))
	c, err := d.measure(ctx, secretPath, password(11), func() error { return d.setSecret(ctx, password(11)) })
	d.claim(err, "and is live again: the next change took %s from the request", ms(c.request))
	d.claim(d.mounts(1), "it is still one mount")
	err = errors.Join(d.plugin.ShownLeaks(ctx), d.plugin.DiskLeaks())
	d.claim(err, "the plugin's log, at -v=10, its record and its answers hold no value of the Secret")
	return nil
}

func (d *demo) unpublish(ctx context.Context) error {
	// The Ctrl-C that ended a wait must not end what comes after it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	begin := time.Now()
	d.claim(d.plugin.Unpublish(ctx, d.volume), "NodeUnpublishVolume answered after %s, and the target is gone", since(begin))
	d.claim(d.mounts(0), "0 mounts are left")
	records, err := d.plugin.Records()
	if err == nil && len(records) > 0 {
		err = fmt.Errorf("left: %v", records)
	}
	d.claim(err, "0 records are left")
	d.claim(d.watchesOpen(ctx, 0), "0 watches of the plugin are left at the API server")
	d.claim(d.plugin.Terminate(ctx), "the plugin ends on SIGTERM with status 0")
	return nil
}

func config(i int) string { return fmt.Sprintf("greeting: hello %d\n", i) }

// password is what the demo's Secret holds; it is no secret of anybody's, and found where
// it leaks.
func password(i int) string { return fmt.Sprintf("%s-%d", leak.Value, i) }

func (d *demo) target() string { return d.plugin.Target(d.volume) }

func (d *demo) setConfigMap(ctx context.Context, value string) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: map[string]string{"app.yaml": value}}
	_, err := d.controlPlane.Client().CoreV1().ConfigMaps(namespace).Update(ctx, cm, metav1.UpdateOptions{})
	return err
}

func (d *demo) setSecret(ctx context.Context, value string) error {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{secretPath: value}}
	_, err := d.controlPlane.Client().CoreV1().Secrets(namespace).Update(ctx, s, metav1.UpdateOptions{})
	return err
}

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

func (d *demo) modes(want map[string]fs.FileMode) error {
	files, err := harness.Files(d.target())
	if err != nil {
		return err
	}
	for path, mode := range want {
		if got := files[path].Mode; got != mode {
			err = errors.Join(err, fmt.Errorf("%s is %v, want %v", path, got, mode))
		}
	}
	return err
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

func (d *demo) watchesOpen(ctx context.Context, want int) error {
	return harness.Poll(ctx, patience, 20*time.Millisecond, func() error {
		now, err := d.openWatches(ctx)
		if err == nil && now-d.watches != want {
			err = fmt.Errorf("%d watches", now-d.watches)
		}
		return err
	})
}
