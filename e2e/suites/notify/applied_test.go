// Package notify runs refvol-notify beside programs that it has pick up a change, with the configurations of docs/apply.md. Prometheus is built
// from Go modules. nginx is the Debian package nginx-light.
package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/leak"
)

const soon = 30 * time.Second

// program is refvol-notify. TestMain sets it before any test runs, and it is constant from then on.
var program string

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(ctx context.Context) (func() error, error) {
		dir, err := os.MkdirTemp("", "refvol-notify-")
		if err != nil {
			return nil, err
		}
		remove := func() error { return os.RemoveAll(dir) }
		program, err = harness.BuildNotify(ctx, dir, os.Stderr)
		return remove, err
	}))
}

// TestNginxReloads: nginx takes a new configuration after the signal, and goes on with the old one if the new one is bad.
func TestNginxReloads(t *testing.T) {
	nginx := harness.Needs(t, "nginx", "nginx-light")
	e := documented(t, "A signal")
	port := freePort(t)
	text := strings.ReplaceAll(e.data["site.conf"], "8080", "127.0.0.1:"+port)
	live := newVolume(t, "site.conf", text)
	// The sandbox has no other user.
	main := filepath.Join(t.TempDir(), "nginx.conf")
	write(t, main, fmt.Sprintf("user root;\ndaemon off;\npid %s.pid;\nerror_log stderr notice;\nevents {}\nhttp {\n  access_log off;\n  include %s/*.conf;\n}\n", main, live.dir))
	log := start(t, nginx, "-c", main)
	answers := func(want string) {
		t.Helper()
		harness.Eventually(t, soon, func() error { return get(t, "http://127.0.0.1:"+port+"/", want) })
	}
	answers("first\n")
	own := start(t, program, e.args(t, live.dir, nil)...)
	own.says(t, "watches")

	live.update(t, "site.conf", strings.Replace(text, "first", "second", 1))
	answers("second\n")
	live.update(t, "site.conf", "server {")
	log.says(t, "[emerg]")
	answers("second\n")
	live.update(t, "site.conf", strings.Replace(text, "first", "third", 1))
	answers("third\n")
}

// TestPrometheusReloads: the request is repeated until Prometheus takes the configuration. To build Prometheus takes minutes.
func TestPrometheusReloads(t *testing.T) {
	if harness.Scaled(true, false) {
		t.Skipf("it runs in the long form (%s=1)", harness.LongVariable)
	}
	prometheus, err := harness.BuildPrometheusServer(t.Context(), t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	e := documented(t, "A request")
	port := freePort(t)
	text := e.data["prometheus.yml"]
	live := newVolume(t, "prometheus.yml", text)
	log := start(t, prometheus, append(e.serverArgs(live.dir), "--web.listen-address=127.0.0.1:"+port, "--storage.tsdb.path="+t.TempDir())...)
	shows := func(want string) {
		t.Helper()
		harness.Eventually(t, soon, func() error { return get(t, "http://127.0.0.1:"+port+"/api/v1/status/config", want) })
	}
	shows("scrape_interval: 1m")
	own := start(t, program, e.args(t, live.dir, map[string]string{":9090": ":" + port})...)
	own.says(t, "watches")

	live.update(t, "prometheus.yml", strings.Replace(text, "1m", "2m", 1))
	shows("scrape_interval: 2m")
	live.update(t, "prometheus.yml", "global: [")
	own.says(t, "status 500")
	shows("scrape_interval: 2m")
	live.update(t, "prometheus.yml", strings.Replace(text, "1m", "3m", 1))
	shows("scrape_interval: 3m")
	log.says(t, "Completed loading of configuration file")
}

// example is what a section of docs/apply.md shows: the data of its ConfigMap, and its pod.
type example struct {
	data map[string]string
	pod  corev1.Pod
}

func documented(t *testing.T, section string) example {
	t.Helper()
	text, err := os.ReadFile("../../../docs/apply.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## "+section+"\n")
	blocks := doclines.Blocks(rest, "yaml")
	if len(blocks) == 0 {
		t.Fatalf("docs/apply.md has no manifests in the section %q", section)
	}
	config, program, _ := strings.Cut(blocks[0], "\n---\n")
	var e example
	var object corev1.ConfigMap
	if err := errors.Join(yaml.UnmarshalStrict([]byte(config), &object), yaml.UnmarshalStrict([]byte(program), &e.pod)); err != nil {
		t.Fatal(err)
	}
	e.data = object.Data
	return e
}

// args are those of the sidecar, with the directory of a volume in place of where the pod mounts it, and another one for its state.
func (e example) args(t *testing.T, dir string, more map[string]string) []string {
	t.Helper()
	args := replaced(e.pod.Spec.InitContainers[0], dir, more)
	for i := range args {
		args[i] = strings.Replace(args[i], "/run/refvol-notify", t.TempDir(), 1)
	}
	return args
}

func (e example) serverArgs(dir string) []string { return replaced(e.pod.Spec.Containers[0], dir, nil) }

func replaced(c corev1.Container, dir string, more map[string]string) []string {
	var all []string
	for _, arg := range c.Args {
		arg = strings.Replace(arg, c.VolumeMounts[0].MountPath, dir, 1)
		for old, replacement := range more {
			arg = strings.Replace(arg, old, replacement, 1)
		}
		all = append(all, arg)
	}
	return all
}

// volume is a directory in the kubelet's layout.
type volume struct {
	dir   string
	count int
}

func newVolume(t *testing.T, name, text string) *volume {
	t.Helper()
	v := &volume{dir: t.TempDir()}
	v.update(t, name, text)
	if err := os.Symlink(filepath.Join("..data", name), filepath.Join(v.dir, name)); err != nil {
		t.Fatal(err)
	}
	return v
}

// update switches to a generation that has the text.
func (v *volume) update(t *testing.T, name, text string) {
	t.Helper()
	v.count++
	generation := fmt.Sprintf("..%d", v.count)
	if err := os.Mkdir(filepath.Join(v.dir, generation), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(v.dir, generation, name), text)
	link := filepath.Join(v.dir, "..data")
	if err := errors.Join(os.Symlink(generation, link+"_tmp"), os.Rename(link+"_tmp", link)); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// output is what a process has written.
type output struct{ leak.Log }

func (o *output) says(t *testing.T, want string) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		if text := o.String(); !strings.Contains(text, want) {
			return fmt.Errorf("it does not say %q, but\n%s", want, text)
		}
		return nil
	})
}

// start runs a program until the end of the test.
func start(t *testing.T, path string, args ...string) *output {
	t.Helper()
	out := &output{}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(path), out)
		}
	})
	return out
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// get wants a text in the answer.
func get(t *testing.T, url, want string) error {
	t.Helper()
	answer, err := harness.Get(t.Context(), url)
	if err == nil && !strings.Contains(answer.Body, want) {
		err = fmt.Errorf("%s answers %q, want %q", url, answer.Body, want)
	}
	return err
}
