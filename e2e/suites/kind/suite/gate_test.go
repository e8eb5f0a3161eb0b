package suite

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// testGate runs the Job of deploy/examples/gate.yaml, with the rights that it brings: it waits until a pod opens the Secret. Only the image and
// names are replaced.
func testGate(t *testing.T) {
	shop := newNamespace(t)
	s, own := newShell(shop), shop.name
	text := strings.NewReplacer("ghcr.io/refvol/kubectl-refvol:v0.1.0", os.Getenv("REFVOL_GATE_IMAGE"), "refvol-gate", own,
		"namespace: shop", "namespace: "+own, "name: kubectl-refvol", "name: "+own+"-asks").
		Replace(read(t, "../../../../deploy/kubectl-refvol/rbac.yaml") + "---\n" + read(t, "../../../../deploy/examples/gate.yaml"))
	rights, job, found := strings.Cut(text, "apiVersion: batch/v1")
	if !found {
		t.Fatal("the example has no Job")
	}
	file := s.apply(rights)
	t.Cleanup(func() { // some are in no namespace, or in the plugin's
		if err := kubectl(context.WithoutCancel(t.Context()), "delete", "--ignore-not-found", "--filename="+file); err != nil {
			t.Error(err)
		}
	})
	shop.setSecret("db", object{"password": canary("first")})
	p := shop.start(newPod("reader", refvol("login", attributes{"secret": "db"})))

	s.apply("apiVersion: batch/v1" + job)
	eventually(t, podTimeout, "the Job waits", func(context.Context) error {
		if !ready(shop.jobPod(own)) {
			return errors.New("its pod is not ready")
		}
		return nil
	})
	p.probe("read", mountDir+"login/password")
	shop.jobEnds(own, batchv1.JobComplete, "Converged: yes")
}

// read returns a file of the checkout.
func read(t *testing.T, file string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(file))(t))
}

// jobPod returns the first pod of a Job, an empty one if it has none yet.
func (n *namespace) jobPod(name string) *corev1.Pod {
	n.t.Helper()
	pods := must.Get(n.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name}))(n.t)
	if len(pods.Items) == 0 {
		return &corev1.Pod{}
	}
	return &pods.Items[0]
}
