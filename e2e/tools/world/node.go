package world

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

// Node is a plugin on a pretended node of its own, with a namespace of its own at the API server, for one test.
type Node struct {
	*harness.Plugin
	T         *testing.T
	Namespace string
	// Source is a namespace that pods of others want objects of, for some tests.
	Source string
	lab    *Lab
}

// NewNode starts a plugin that logs everything it can. When the test ends the plugin is killed, and what it showed and wrote is searched
// for values, tokens and reports of the race detector.
func (l *Lab) NewNode(t *testing.T, args ...string) *Node {
	t.Helper()
	return l.NewNodeAs(t, l.Kubeconfig, args...)
}

// NewNodeAs is NewNode with the rights of a kubeconfig.
func (l *Lab) NewNodeAs(t *testing.T, kubeconfig string, args ...string) *Node {
	t.Helper()
	return l.NewNodeWith(t, harness.PluginOptions{Kubeconfig: kubeconfig, Args: args})
}

// NewPlain starts a plugin that takes what a release takes: no race detector, few logs.
func (l *Lab) NewPlain(t *testing.T, args ...string) *Node {
	t.Helper()
	binary := must.Get(l.Plain())(t)
	return l.NewNodeWith(t, harness.PluginOptions{Binary: binary, Kubeconfig: l.Kubeconfig, Args: append(args, "-v=2")})
}

// NodeDir makes the directory of a node.
func NodeDir(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "refvol-node-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// NewNodeWith is NewNode with other options; a binary is added where there is none.
func (l *Lab) NewNodeWith(t *testing.T, o harness.PluginOptions) *Node {
	t.Helper()
	n := &Node{T: t, Namespace: l.NewNamespace(t), lab: l}
	if o.Binary == "" {
		o.Binary = l.Plugin
	}
	if o.Dir == "" {
		o.Dir = NodeDir(t)
	}
	o.Pods = l.ControlPlane
	o.Args = append([]string{"-v=10", AnyStatusPort}, o.Args...)
	p := must.Get(harness.StartPlugin(t.Context(), o))(t)
	n.Plugin = p
	t.Cleanup(n.finish)
	return n
}

// NewNamespace makes a namespace and returns its name.
func (l *Lab) NewNamespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "it-"}}
	ns = must.Get(l.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}))(t)
	return ns.Name
}

func (n *Node) finish() {
	if n.T.Failed() {
		n.T.Logf("last lines of the plugin's log:\n%s", n.LogTail())
	}
	// The test's own context has ended.
	ctx := context.WithoutCancel(n.T.Context())
	shown := n.ShownLeaks(ctx)
	if err := n.Close(); err != nil {
		n.T.Error(err)
	}
	log := n.Log()
	for _, bad := range []string{"DATA RACE", "panic: ", "panicked"} {
		if i := bytes.Index(log, []byte(bad)); i >= 0 {
			n.T.Errorf("the plugin's log has %q:\n%s", bad, log[i:min(i+4000, len(log))])
		}
	}
	_, told := harness.EventLeaks(ctx, n.lab.Client(), n.Namespace)
	must.Do(n.T, errors.Join(shown, told, n.DiskLeaks()))
}

// Canary returns a new value that must not show anywhere but in files of volumes.
func (n *Node) Canary() string { return leak.NewValue() }

// ConfigMap creates or replaces a ConfigMap in the node's namespace.
func (n *Node) ConfigMap(name string, data map[string]string) {
	n.T.Helper()
	n.PutObject("configMap", name, data)
}

// Secret creates or replaces a Secret in the node's namespace.
func (n *Node) Secret(name string, data map[string]string) {
	n.T.Helper()
	n.PutObject("secret", name, data)
}

// PutObject creates or replaces a Secret or a ConfigMap in the node's namespace, by its kind.
func (n *Node) PutObject(kind, name string, data map[string]string) metav1.Object {
	n.T.Helper()
	return must.Get(harness.PutObject(n.T.Context(), n.lab.Client(), n.Namespace, kind, name, data))(n.T)
}

// RemoveObject deletes a Secret or a ConfigMap of the node's namespace, by its kind.
func (n *Node) RemoveObject(kind, name string) {
	n.T.Helper()
	remove := n.lab.Client().CoreV1().ConfigMaps(n.Namespace).Delete
	if kind == "secret" {
		remove = n.lab.Client().CoreV1().Secrets(n.Namespace).Delete
	}
	must.Do(n.T, remove(n.T.Context(), name, metav1.DeleteOptions{}))
}

// Volume returns a volume of a new pod.
func (n *Node) Volume(attributes map[string]string) *harness.Volume {
	v := harness.NewVolume(n.Namespace, "", attributes)
	v.Pod = "pod-" + v.UID
	return v
}

// Short returns a volume of one ConfigMap by the short form.
func (n *Node) Short(configMap string) *harness.Volume {
	return n.Volume(map[string]string{"configMap": configMap})
}

// Published publishes a volume of one ConfigMap.
func (n *Node) Published(configMap string) *harness.Volume {
	n.T.Helper()
	v := n.Short(configMap)
	n.MustPublish(v)
	return v
}

// MustPublish publishes a volume at the first call.
func (n *Node) MustPublish(v *harness.Volume) {
	n.T.Helper()
	if err := n.Publish(n.T.Context(), v); err != nil {
		n.T.Fatalf("publish: %v", err)
	}
}

// MustUnpublish unpublishes a volume at the first call.
func (n *Node) MustUnpublish(v *harness.Volume) {
	n.T.Helper()
	if err := n.Unpublish(n.T.Context(), v); err != nil {
		n.T.Fatalf("unpublish: %v", err)
	}
}

// MustStart starts the plugin again, which has ended.
func (n *Node) MustStart() {
	n.T.Helper()
	must.Do(n.T, n.Start(n.T.Context()))
}

// MustKill kills the plugin, if it has not ended.
func (n *Node) MustKill() {
	n.T.Helper()
	must.Do(n.T, n.Kill())
}

// Crash kills the plugin, if it has not ended, and starts it again.
func (n *Node) Crash() {
	n.T.Helper()
	n.MustKill() // ends the connection too
	n.MustStart()
}

// Publishing calls Publish in the background and returns where its answer comes.
func (n *Node) Publishing(v *harness.Volume) <-chan error {
	answer := make(chan error, 1)
	go func() { answer <- n.Publish(n.T.Context(), v) }()
	return answer
}

// RestartWith ends the plugin and starts it again with more flags, as a rollout does.
func (n *Node) RestartWith(args ...string) {
	n.T.Helper()
	must.Do(n.T, n.Terminate(n.T.Context()))
	n.AddArgs(args...)
	n.MustStart()
}

// KernelCounts returns what volumes take by the kernel's count, 1 KiB for each inode.
func (n *Node) KernelCounts(volumes ...*harness.Volume) (bytes int64) {
	n.T.Helper()
	for _, v := range volumes {
		var fs unix.Statfs_t
		must.Do(n.T, unix.Statfs(n.Target(v), &fs))
		bytes += int64(fs.Blocks-fs.Bfree)*fs.Bsize + int64(fs.Files-fs.Ffree)<<10
	}
	return bytes
}

// UnpublishAll unpublishes all volumes that the node has.
func (n *Node) UnpublishAll(volumes []*harness.Volume) {
	n.T.Helper()
	for _, v := range volumes {
		n.MustUnpublish(v)
	}
	n.WantNothingLeft()
}

// Log returns what the plugin has logged since the node began.
func (n *Node) Log() []byte {
	n.T.Helper()
	return must.Get(os.ReadFile(n.LogPath()))(n.T)
}

// Value replaces a ConfigMap by one with a new value, which it returns.
func (n *Node) Value(name string) string {
	n.T.Helper()
	value := n.Canary()
	n.ConfigMap(name, map[string]string{"key": value})
	return value
}

// Publishes waits until a publish succeeds, as the kubelet does, which tries again.
func (n *Node) Publishes(v *harness.Volume, within time.Duration) {
	n.T.Helper()
	harness.Eventually(n.T, within, func() error { return n.Publish(n.T.Context(), v) })
}

// AnyStatusPort is the flag with which a plugin serves its status.
const AnyStatusPort = "--status-address=127.0.0.1:0"

// Report returns the plugin's status.
func (n *Node) Report() (*status.Report, error) {
	n.T.Helper()
	return status.Fetch(n.T.Context(), &http.Transport{DisableKeepAlives: true}, n.Address(n.StatusAddress))
}

// AnyPort is the flag with which a plugin serves metrics and probes.
const AnyPort = "--http-address=127.0.0.1:0"

// Address returns where the plugin serves what of names, as n.HTTPAddress. It must run with the flag for it.
func (n *Node) Address(of func() (string, error)) string {
	n.T.Helper()
	address, err := of()
	if err != nil || address == "" {
		n.T.Fatalf("where the plugin listens: %q, %v", address, err)
	}
	return address
}
