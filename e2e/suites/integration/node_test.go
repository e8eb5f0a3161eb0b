package integration

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/status"
)

// node is a plugin on a pretended node of its own, with a namespace of its own at
// the API server, for one test.
type node struct {
	*harness.Plugin
	t         *testing.T
	namespace string
	// source is a namespace that pods of others want objects of, for some tests.
	source string
}

// newNode starts a plugin that logs everything it can. When the test ends the
// plugin is killed, and what it showed and wrote is searched for values, tokens and
// reports of the race detector.
func newNode(t *testing.T, args ...string) *node {
	t.Helper()
	return newNodeAs(t, shared.Kubeconfig, args...)
}

func newNodeAs(t *testing.T, kubeconfig string, args ...string) *node {
	t.Helper()
	return newNodeWith(t, harness.PluginOptions{Kubeconfig: kubeconfig, Args: args})
}

// newPlain starts a plugin that takes what a release takes: no race detector, few logs.
func newPlain(t *testing.T, args ...string) *node {
	t.Helper()
	binary := must.Get(shared.plain())(t)
	return newNodeWith(t, harness.PluginOptions{Binary: binary, Kubeconfig: shared.Kubeconfig, Args: append(args, "-v=2")})
}

// nodeDir makes the directory of a node.
func nodeDir(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "refvol-node-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newNodeWith is newNode with other options; a binary is added where there is none.
func newNodeWith(t *testing.T, o harness.PluginOptions) *node {
	t.Helper()
	n := &node{t: t, namespace: newNamespace(t)}
	if o.Binary == "" {
		o.Binary = shared.Plugin
	}
	if o.Dir == "" {
		o.Dir = nodeDir(t)
	}
	o.Pods = shared.ControlPlane
	o.Args = append([]string{"-v=10", anyStatusPort}, o.Args...)
	p := must.Get(harness.StartPlugin(t.Context(), o))(t)
	n.Plugin = p
	t.Cleanup(n.finish)
	return n
}

func newNamespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "it-"}}
	ns = must.Get(shared.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}))(t)
	return ns.Name
}

func (n *node) finish() {
	if n.t.Failed() {
		n.t.Logf("last lines of the plugin's log:\n%s", n.LogTail())
	}
	// The test's own context has ended.
	ctx := context.WithoutCancel(n.t.Context())
	shown := n.ShownLeaks(ctx)
	if err := n.Close(); err != nil {
		n.t.Error(err)
	}
	log := must.Get(os.ReadFile(n.LogPath()))(n.t)
	for _, bad := range []string{"DATA RACE", "panic: ", "panicked"} {
		if i := bytes.Index(log, []byte(bad)); i >= 0 {
			n.t.Errorf("the plugin's log has %q:\n%s", bad, log[i:min(i+4000, len(log))])
		}
	}
	_, told := harness.EventLeaks(ctx, shared.Client(), n.namespace)
	must.Do(n.t, errors.Join(shown, told, n.DiskLeaks()))
}

// canary returns a new value that must not show anywhere but in files of volumes.
func (n *node) canary() string { return leak.NewValue() }

func (n *node) configMap(name string, data map[string]string) {
	n.t.Helper()
	n.putObject("configMap", name, data)
}

func (n *node) secret(name string, data map[string]string) {
	n.t.Helper()
	n.putObject("secret", name, data)
}

// putObject creates or replaces a Secret or a ConfigMap in the node's namespace, by its kind.
func (n *node) putObject(kind, name string, data map[string]string) metav1.Object {
	n.t.Helper()
	return must.Get(harness.PutObject(n.t.Context(), shared.Client(), n.namespace, kind, name, data))(n.t)
}

func (n *node) removeObject(kind, name string) {
	n.t.Helper()
	remove := shared.Client().CoreV1().ConfigMaps(n.namespace).Delete
	if kind == "secret" {
		remove = shared.Client().CoreV1().Secrets(n.namespace).Delete
	}
	must.Do(n.t, remove(n.t.Context(), name, metav1.DeleteOptions{}))
}

// volume returns a volume of a new pod.
func (n *node) volume(attributes map[string]string) *harness.Volume {
	v := harness.NewVolume(n.namespace, "", attributes)
	v.Pod = "pod-" + v.UID
	return v
}

// short returns a volume of one ConfigMap by the short form.
func (n *node) short(configMap string) *harness.Volume {
	return n.volume(map[string]string{"configMap": configMap})
}

// published publishes a volume of one ConfigMap.
func (n *node) published(configMap string) *harness.Volume {
	n.t.Helper()
	v := n.short(configMap)
	n.mustPublish(v)
	return v
}

func (n *node) mustPublish(v *harness.Volume) {
	n.t.Helper()
	if err := n.Publish(n.t.Context(), v); err != nil {
		n.t.Fatalf("publish: %v", err)
	}
}

func (n *node) mustUnpublish(v *harness.Volume) {
	n.t.Helper()
	if err := n.Unpublish(n.t.Context(), v); err != nil {
		n.t.Fatalf("unpublish: %v", err)
	}
}

func (n *node) mustStart() {
	n.t.Helper()
	must.Do(n.t, n.Start(n.t.Context()))
}

func (n *node) mustKill() {
	n.t.Helper()
	must.Do(n.t, n.Kill())
}

// crash kills the plugin, if it has not ended, and starts it again.
func (n *node) crash() {
	n.t.Helper()
	n.mustKill() // ends the connection too
	n.mustStart()
}

// publishing calls Publish in the background and returns where its answer comes.
func (n *node) publishing(v *harness.Volume) <-chan error {
	answer := make(chan error, 1)
	go func() { answer <- n.Publish(n.t.Context(), v) }()
	return answer
}

// restartWith ends the plugin and starts it again with more flags, as a rollout does.
func (n *node) restartWith(args ...string) {
	n.t.Helper()
	must.Do(n.t, n.Terminate(n.t.Context()))
	n.AddArgs(args...)
	n.mustStart()
}

// kernelCounts returns what volumes take by the kernel's count, 1 KiB for each inode.
func (n *node) kernelCounts(volumes ...*harness.Volume) (bytes int64) {
	n.t.Helper()
	for _, v := range volumes {
		var fs unix.Statfs_t
		must.Do(n.t, unix.Statfs(n.Target(v), &fs))
		bytes += int64(fs.Blocks-fs.Bfree)*fs.Bsize + int64(fs.Files-fs.Ffree)<<10
	}
	return bytes
}

func (n *node) unpublishAll(volumes []*harness.Volume) {
	n.t.Helper()
	for _, v := range volumes {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

func (n *node) log() []byte {
	n.t.Helper()
	log := must.Get(os.ReadFile(n.LogPath()))(n.t)
	return log
}

// value replaces a ConfigMap by one with a new value, which it returns.
func (n *node) value(name string) string {
	n.t.Helper()
	value := n.canary()
	n.configMap(name, map[string]string{"key": value})
	return value
}

// publishes waits until a publish succeeds, as the kubelet does, which tries again.
func (n *node) publishes(v *harness.Volume, within time.Duration) {
	n.t.Helper()
	harness.Eventually(n.t, within, func() error { return n.Publish(n.t.Context(), v) })
}

// anyStatusPort is the flag with which a plugin serves its status.
const anyStatusPort = "--status-address=127.0.0.1:0"

func (n *node) statusAddress() string { return n.address(n.StatusAddress) }

// report returns the plugin's status.
func (n *node) report() (*status.Report, error) {
	n.t.Helper()
	return status.Fetch(n.t.Context(), &http.Transport{DisableKeepAlives: true}, n.statusAddress())
}

// anyPort is the flag with which a plugin serves metrics and probes.
const anyPort = "--http-address=127.0.0.1:0"

// servingAddress returns where the plugin serves HTTP. It must run with anyPort.
func (n *node) servingAddress() string { return n.address(n.HTTPAddress) }

func (n *node) address(of func() (string, error)) string {
	n.t.Helper()
	address, err := of()
	if err != nil || address == "" {
		n.t.Fatalf("where the plugin listens: %q, %v", address, err)
	}
	return address
}
