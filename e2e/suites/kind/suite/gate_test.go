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
)

// testGate runs the Job of deploy/examples/gate.yaml, with the rights that it brings: it ends with the command's exit status
// and a list while nobody has opened the Secret, and waits until a pod does. Only the image, names and the time to wait
// are replaced.
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

	start := func(name, timeout string) {
		named := strings.Replace(job, "name: "+own, "name: "+name, 1)
		s.apply("apiVersion: batch/v1" + strings.Replace(named, "--timeout=10m", "--timeout="+timeout, 1))
	}
	start("too-early", "10s")
	shop.jobEnds("too-early", batchv1.JobFailed, "NotOpened", "nobody has opened password")
	if status := shop.jobPod("too-early").Status.ContainerStatuses[0].State.Terminated; status == nil || status.ExitCode != 1 {
		t.Errorf("its container ended with %+v", status)
	}
	start("in-time", "10m")
	eventually(t, podTimeout, "the Job waits", func(context.Context) error {
		if !ready(shop.jobPod("in-time")) {
			return errors.New("its pod is not ready")
		}
		return nil
	})
	p.probe("read", mountDir+"login/password")
	shop.jobEnds("in-time", batchv1.JobComplete, "Converged: yes")
}

// read returns a file of the checkout.
func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// jobPod returns the first pod of a Job, an empty one if it has none yet.
func (n *namespace) jobPod(name string) *corev1.Pod {
	n.t.Helper()
	pods, err := n.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
	if err != nil {
		n.t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		return &corev1.Pod{}
	}
	return &pods.Items[0]
}
