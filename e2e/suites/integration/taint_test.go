package integration

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const startupTaint = "csi.refvol.dev/agent-not-ready"

// notify tells the plugin what became of its registration, as a kubelet does.
func notify(t *testing.T, p *harness.Plugin, status *registration.RegistrationStatus) {
	t.Helper()
	var sockets []string
	harness.Eventually(t, soon, func() (err error) {
		if sockets, err = filepath.Glob(filepath.Join(p.RegistrationDir(), "*.sock")); err == nil && len(sockets) != 1 {
			err = fmt.Errorf("registration sockets are %q", sockets)
		}
		return err
	})
	conn, err := grpc.NewClient("unix://"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := registration.NewRegistrationClient(conn).NotifyRegistrationStatus(t.Context(), status); err != nil {
		t.Fatal(err)
	}
}

// TestMountsThatReachNoPod: a plugin whose mounts don't reach pods says what to set, publishes nothing, and
// leaves the startup taint. It registers, so that pods can end, and updates the volumes of the process before.
func TestMountsThatReachNoPod(t *testing.T) {
	t.Parallel()
	nodes := shared.Client().CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	tainted := func() bool {
		if node, err = nodes.Get(t.Context(), node.Name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == startupTaint })
	}
	n := newNodeAs(t, componentAccount(t, "startup-taint"), "--node-name="+node.Name, "--startup-taint="+startupTaint, anyPort)
	restart := func(propagates bool) {
		t.Helper()
		n.mustKill()
		if err := n.Propagate(propagates); err != nil {
			t.Fatal(err)
		}
		n.mustStart()
		notify(t, n.Plugin, &registration.RegistrationStatus{PluginRegistered: true})
	}
	n.value("app")
	v := n.published("app")

	restart(false)
	const advice = "mounts of this process don't reach the node: set mountPropagation: Bidirectional"
	n.becomes("[-]shared-mounts: ", advice, "[+]rights ok", "[+]registration ok")
	n.arrives(v, "key", n.value("app"), soon) // its pod's spec says what it shows
	n.mustPublish(v)
	late := n.short("app")
	wantStatus(t, n.Publish(t.Context(), late), codes.Unavailable, advice)
	n.wantMounts(1)
	n.mustUnpublish(late)
	n.mustUnpublish(v)
	n.wantNothingLeft()
	log := n.log()
	said, removes := bytes.Count(log, []byte("Not ready: pods would get empty directories")), bytes.Count(log, []byte("startup taint"))
	if said != 1 || removes > 0 || !tainted() {
		t.Errorf("it said %d times that it is not ready, and %d times something of the taint, which is there: %t", said, removes, tainted())
	}

	restart(true)
	harness.Eventually(t, 2*soon, func() error { // more than the longest wait between two attempts
		if tainted() {
			return fmt.Errorf("the taint is there")
		}
		return nil
	})
	n.becomes()
	n.mustPublish(late)
	n.mustUnpublish(late)
}
