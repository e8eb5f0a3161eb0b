package manifests

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/check"
	"github.com/refvol/refvol/pkg/volume"
)

// nothingKnown is a cluster whose objects the caller may not read.
type nothingKnown struct{}

func (nothingKnown) Lookup(context.Context, volume.Ref) (check.Object, error) {
	return check.Object{Exists: check.Unknown}, nil
}

func (nothingKnown) CanI(context.Context, volume.ServiceAccount, volume.Ref, string) (check.Answer, error) {
	return check.Unknown, nil
}

func (nothingKnown) Text(context.Context, volume.Ref, string) ([]byte, error) { return nil, nil }

// TestCheckOfLiveLabel: what `kubectl refvol check --label=live` says of a namespace without the label is what the policy does with each
// case in a namespace that has it.
func TestCheckOfLiveLabel(t *testing.T) {
	s := newLiveSuite(t)
	s.enforce(t)
	compared := 0
	for _, c := range liveCases(s) {
		if c.namespace != "" || c.says != "" { // check is about pods that run in namespaces that may get the label
			continue
		}
		checker, err := check.New(check.Options{Driver: harness.DriverName, Namespace: s.plain, Cluster: nothingKnown{}})
		if err != nil {
			t.Fatal(err)
		}
		pod := c.pod.DeepCopy()
		pod.Namespace = s.plain
		report, err := checker.Label(t.Context(), check.LabelOptions{
			Label: check.LiveLabel, Namespace: s.plain, MaxVolumeSize: check.MaxVolumeSize, Pods: []corev1.Pod{*pod},
			Creator: shared.Client().CoreV1().Pods(s.plain), Policies: shared.Client().AdmissionregistrationV1().MutatingAdmissionPolicies(),
		})
		if err != nil || len(report.Pods) == 0 && pod.Annotations[corev1.MirrorPodAnnotationKey] == "" {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, one := range report.Pods {
			live := slices.Sorted(slices.Values(one.Changed))
			if want := slices.Sorted(maps.Keys(c.moves)); !slices.Equal(live, want) || one.NotKnown != "" {
				t.Errorf("%s: check says that %q become live, and the policy has %q: %+v", c.name, live, want, one)
			}
		}
		compared++
	}
	if compared < 50 {
		t.Errorf("%d cases were compared", compared)
	}
}

// checkRestart runs the command as the cluster's admin. It returns what it wrote and its exit status.
func checkRestart(t *testing.T, namespace string) (string, int) {
	t.Helper()
	stdout, stderr, status := harness.Run(t, shared.refvol, "check", "--label=restart", "--namespace="+namespace, "--kubeconfig="+shared.Kubeconfig())
	return stdout + stderr, status
}

// TestCheckOfRestartLabel: a namespace in which a pod would be refused with the label is found before it has the label.
func TestCheckOfRestartLabel(t *testing.T) {
	s := newRestartSuite(t)
	namespaces := map[string]string{}
	for _, name := range []string{"plain", "minimum", "quota", "nodes"} {
		namespaces[name] = ownNamespace(t, nil)
		runApp(t, namespaces[name])
	}
	if out, status := checkRestart(t, namespaces["plain"]); status != 2 || !strings.Contains(out, "there is no MutatingAdmissionPolicy refvol-restart\n") {
		t.Errorf("without the component: status %d\n%s", status, out)
	}
	limit(t, namespaces["minimum"])
	fill(t, namespaces["quota"])
	s.enforce(t)
	for _, test := range []struct {
		namespace string
		status    int
		want      string
	}{
		{"plain", 0, "1 would change, 0 could not start, 0 not known\n"},
		{"minimum", 1, "minimum memory usage per Container is 64Mi, but request is 32Mi\n"},
		{"quota", 2, "exceeded quota: full, requested: pods=1, used: pods=1, limited: pods=1\n"},
	} {
		// The API server learns of limits a moment later.
		harness.Eventually(t, soon, func() error {
			if out, status := checkRestart(t, namespaces[test.namespace]); status != test.status || !strings.Contains(out, test.want) {
				return fmt.Errorf("%s: status %d\n%s", test.namespace, status, out)
			}
			return nil
		})
	}
	addNode(t, "v1.35.3")
	if out, status := checkRestart(t, namespaces["nodes"]); status != 1 || !strings.Contains(out, " nodes older than 1.36: old (v1.35.3)\n") {
		t.Errorf("with an old node: status %d\n%s", status, out)
	}
	// Nothing was created.
	for name, namespace := range namespaces {
		pods, err := shared.Client().CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(pods.Items) != 1 {
			t.Errorf("namespace %s: %v, %d pods", name, err, len(pods.Items))
		}
	}
}

// runApp makes a pod that uses a ConfigMap, until the end of the test.
func runApp(t *testing.T, namespace string) {
	t.Helper()
	pods := shared.Client().CoreV1().Pods(namespace)
	memory := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "app", Image: "example.com/app", Resources: corev1.ResourceRequirements{Requests: memory, Limits: memory},
		EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
	}}}}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Error(err)
		}
	})
}

// limit gives the containers of a namespace a minimum of memory.
func limit(t *testing.T, namespace string) {
	t.Helper()
	minimum := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	if _, err := shared.Client().CoreV1().LimitRanges(namespace).Create(t.Context(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "minimum"},
		Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: minimum}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// fill gives a namespace a quota of one pod, as if a controller had counted its pod.
func fill(t *testing.T, namespace string) {
	t.Helper()
	one := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
	quotas := shared.Client().CoreV1().ResourceQuotas(namespace)
	quota, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "full"}, Spec: corev1.ResourceQuotaSpec{Hard: one},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: one, Used: one}
	if _, err := quotas.UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// addNode makes a node, until the end of the test.
func addNode(t *testing.T, kubelet string) {
	t.Helper()
	nodes := shared.Client().CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	node.Status.NodeInfo.KubeletVersion = kubelet
	if _, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
