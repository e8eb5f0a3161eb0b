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
	"github.com/refvol/refvol/internal/must"
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
	address := "127.0.0.1:" + freePort(t)
	data, pod := documented(t, "A signal", "8080", address)
	text := data["site.conf"]
	live := newVolume(t, "site.conf", text)
	// The sandbox has no other user.
	main := filepath.Join(t.TempDir(), "nginx.conf")
	const settings = "user root;\ndaemon off;\npid %s.pid;\nerror_log stderr notice;\nevents {}\nhttp {\n  access_log off;\n  include %s/*.conf;\n}\n"
	write(t, main, fmt.Sprintf(settings, main, live))
	log := start(t, nginx, "-c", main)
	url := "http://" + address + "/"
	answers(t, url, "first\n")
	start(t, program, args(t, pod.Spec.InitContainers[0], live)...).says(t, "watches")

	update(t, live, "site.conf", strings.Replace(text, "first", "second", 1))
	answers(t, url, "second\n")
	update(t, live, "site.conf", "server {")
	log.says(t, "[emerg]")
	answers(t, url, "second\n")
	update(t, live, "site.conf", strings.Replace(text, "first", "third", 1))
	answers(t, url, "third\n")
}

// TestPrometheusReloads: the request is repeated until Prometheus takes the configuration. To build Prometheus takes minutes.
func TestPrometheusReloads(t *testing.T) {
	if harness.Scaled(true, false) {
		t.Skipf("it runs in the long form (%s=1)", harness.LongVariable)
	}
	prometheus := must.Get(harness.BuildPrometheusServer(t.Context(), t.TempDir(), os.Stderr))(t)
	port := freePort(t)
	data, pod := documented(t, "A request", ":9090", ":"+port)
	text := data["prometheus.yml"]
	live := newVolume(t, "prometheus.yml", text)
	own := args(t, pod.Spec.Containers[0], live)
	log := start(t, prometheus, append(own, "--web.listen-address=127.0.0.1:"+port, "--storage.tsdb.path="+t.TempDir())...)
	url := "http://127.0.0.1:" + port + "/api/v1/status/config"
	answers(t, url, "scrape_interval: 1m")
	sidecar := start(t, program, args(t, pod.Spec.InitContainers[0], live)...)
	sidecar.says(t, "watches")

	update(t, live, "prometheus.yml", strings.Replace(text, "1m", "2m", 1))
	answers(t, url, "scrape_interval: 2m")
	update(t, live, "prometheus.yml", "global: [")
	sidecar.says(t, "status 500")
	answers(t, url, "scrape_interval: 2m")
	update(t, live, "prometheus.yml", strings.Replace(text, "1m", "3m", 1))
	answers(t, url, "scrape_interval: 3m")
	log.says(t, "Completed loading of configuration file")
}

// documented returns what a section of docs/apply.md shows, with another address: the data of its ConfigMap, and its pod.
func documented(t *testing.T, section, address, another string) (map[string]string, *corev1.Pod) {
	t.Helper()
	text := must.Get(os.ReadFile("../../../docs/apply.md"))(t)
	_, rest, _ := strings.Cut(string(text), "\n## "+section+"\n")
	blocks := doclines.Blocks(rest, "yaml")
	if len(blocks) == 0 {
		t.Fatalf("docs/apply.md has no manifests in the section %q", section)
	}
	config, program, _ := strings.Cut(strings.ReplaceAll(blocks[0], address, another), "\n---\n")
	object, pod := &corev1.ConfigMap{}, &corev1.Pod{}
	must.Do(t, errors.Join(yaml.UnmarshalStrict([]byte(config), object), yaml.UnmarshalStrict([]byte(program), pod)))
	return object.Data, pod
}

// args are those of a container, with directories in place of where the pod mounts the volume and the sidecar's state.
func args(t *testing.T, c corev1.Container, dir string) []string {
	t.Helper()
	var all []string
	for _, arg := range c.Args {
		arg = strings.Replace(arg, c.VolumeMounts[0].MountPath, dir, 1)
		all = append(all, strings.Replace(arg, "/run/refvol-notify", t.TempDir(), 1))
	}
	return all
}

// newVolume returns a directory in the kubelet's layout, with one file.
func newVolume(t *testing.T, name, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	update(t, dir, name, text)
	must.Do(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	return dir
}

// update switches a volume to a generation that has the text.
func update(t *testing.T, dir, name, text string) {
	t.Helper()
	generation := must.Get(os.MkdirTemp(dir, ".."))(t)
	write(t, filepath.Join(generation, name), text)
	link := filepath.Join(dir, "..data")
	must.Do(t, errors.Join(os.Symlink(filepath.Base(generation), link+"_tmp"), os.Rename(link+"_tmp", link)))
}

func write(t *testing.T, name, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(name, []byte(text), 0o600))
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
	must.Do(t, cmd.Start())
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
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must.Do(t, err)
	return port
}

// answers waits until the answer has a text.
func answers(t *testing.T, url, want string) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		answer, err := harness.Get(t.Context(), url)
		if err == nil && !strings.Contains(answer.Body, want) {
			err = fmt.Errorf("%s answers %q, want %q", url, answer.Body, want)
		}
		return err
	})
}
