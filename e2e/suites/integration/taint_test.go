package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	startupTaint = "csi.refvol.dev/agent-not-ready"
	// taintTimeout is more than the longest wait between two attempts, on a busy machine.
	taintTimeout = 2 * time.Minute
)

// setTaints has a Node have exactly these taints.
func setTaints(t *testing.T, node string, taints []corev1.Taint) {
	t.Helper()
	nodes := shared.Client().CoreV1().Nodes()
	harness.Eventually(t, taintTimeout, func() error {
		object, err := nodes.Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.Spec.Taints = taints
		_, err = nodes.Update(t.Context(), object, metav1.UpdateOptions{})
		return err
	})
}

// taints returns a Node's taints as kubectl writes them.
func taints(t *testing.T, node string) []string {
	t.Helper()
	object, err := shared.Client().CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return written(object.Spec.Taints)
}

func written(taints []corev1.Taint) []string {
	var texts []string
	for _, taint := range taints {
		texts = append(texts, taint.ToString())
	}
	return texts
}

// taintsBecome waits until a Node has exactly these taints, in this order.
func taintsBecome(t *testing.T, node string, want []corev1.Taint) {
	t.Helper()
	harness.Eventually(t, taintTimeout, func() error {
		if got := taints(t, node); !slices.Equal(got, written(want)) {
			return fmt.Errorf("the node's taints are %q, want %q", got, written(want))
		}
		return nil
	})
}

// kubelet is a client of the plugin's registration socket.
func (n *node) kubelet() registration.RegistrationClient {
	n.t.Helper()
	var found []string
	harness.Eventually(n.t, soon, func() error {
		var err error
		found, err = filepath.Glob(filepath.Join(n.RegistrationDir(), "*.sock"))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("registration sockets are %q", found)
		}
		return err
	})
	conn, err := grpc.NewClient("unix://"+found[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return registration.NewRegistrationClient(conn)
}

// confirm tells the plugin what became of its registration.
func (n *node) confirm(kubelet registration.RegistrationClient, registered bool) {
	n.t.Helper()
	status := &registration.RegistrationStatus{PluginRegistered: registered}
	if _, err := kubelet.NotifyRegistrationStatus(n.t.Context(), status); err != nil {
		n.t.Fatal(err)
	}
}

// logs waits until the plugin has logged text so often.
func (n *node) logs(text string, count int) {
	n.t.Helper()
	harness.Eventually(n.t, taintTimeout, func() error {
		log, err := os.ReadFile(n.LogPath())
		if err == nil && strings.Count(string(log), text) != count {
			err = fmt.Errorf("%q is %d times in the log, want %d", text, strings.Count(string(log), text), count)
		}
		return err
	})
}

// newNodeObject creates a Node, which exists until the test ends, and returns its name.
func newNodeObject(t *testing.T, ttl string) (name string) {
	t.Helper()
	nodes := shared.Client().CoreV1().Nodes()
	object, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "node-",
		Annotations:  map[string]string{corev1.ObjectTTLAnnotationKey: ttl},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(t.Context()), object.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return object.Name
}

// TestMountsThatReachNoPod: a plugin whose mounts don't reach pods says what to set, publishes nothing, and
// leaves the startup taint. It registers, so that pods can end, and updates the volumes of the process before.
func TestMountsThatReachNoPod(t *testing.T) {
	t.Parallel()
	node := newNodeObject(t, "0")
	n := newNodeAs(t, componentAccount(t, "startup-taint"), "--node-name="+node, "--startup-taint="+startupTaint, anyPort)
	n.value("app")
	v := n.published("app")
	// The pod that the plugin is in is made again, without the propagation.
	n.mustKill()
	if err := n.Propagate(false); err != nil {
		t.Fatal(err)
	}
	setTaints(t, node, []corev1.Taint{{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}})
	before := taints(t, node)
	n.mustStart()
	n.confirm(n.kubelet(), true)

	const advice = "mounts of this process don't reach the node: set mountPropagation: Bidirectional"
	n.becomes("[-]shared-mounts: ", advice, "[+]rights ok", "[+]registration ok")
	n.logs("Not ready: pods would get empty directories", 1)
	n.arrives(v, "key", n.value("app"), soon) // its pod's spec says what it shows
	n.mustPublish(v)
	late := n.short("app")
	wantStatus(t, n.Publish(t.Context(), late), codes.Unavailable, advice)
	n.wantMounts(1)
	n.mustUnpublish(late)
	n.mustUnpublish(v)
	n.wantNothingLeft()
	n.logs("startup taint", 0)
	if got := taints(t, node); !slices.Equal(got, before) {
		t.Errorf("the taints are %q, want %q", got, before)
	}

	n.mustKill()
	if err := n.Propagate(true); err != nil {
		t.Fatal(err)
	}
	n.mustStart()
	n.confirm(n.kubelet(), true)
	taintsBecome(t, node, nil)
	n.becomes()
	n.mustPublish(late)
	n.mustUnpublish(late)
}
