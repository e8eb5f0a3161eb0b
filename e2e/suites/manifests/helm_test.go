package manifests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const checkName = "refvol-uninstall-check"

// helm is the client of a release, and namespace the release's.
type helm struct {
	program, chart, namespace string
}

func newHelm(t *testing.T) helm {
	t.Helper()
	program, err := harness.BuildHelm(t.Context(), t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	// It stays: the API server has no controller that could delete it.
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "refvol-helm-"}}
	if own, err = shared.Client().CoreV1().Namespaces().Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return helm{program: program, chart: filepath.Join(shared.deploy, "charts", "refvol"), namespace: own.Name}
}

// run runs helm as the cluster's admin. The error has what it printed.
func (h helm) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, h.program, append(args, "--namespace="+h.namespace)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig(), "HOME="+shared.dir, "HELM_DATA_HOME="+shared.dir,
		"HELM_CONFIG_HOME="+shared.dir, "HELM_CACHE_HOME="+filepath.Join(shared.dir, "cache"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %q: %w: %s", args, err, out)
	}
	return nil
}

func (h helm) must(t *testing.T, args ...string) {
	t.Helper()
	if err := h.run(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

// TestHelm installs the chart, upgrades it to other values, rolls it back, and uninstalls it, which
// is refused while a pod uses the driver.
func TestHelm(t *testing.T) {
	h := newHelm(t)
	t.Cleanup(func() {
		if err := h.run(context.WithoutCancel(t.Context()), "uninstall", "refvol", "--no-hooks", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	h.must(t, "install", "refvol", h.chart, "--take-ownership", "--set=namespace.create=true,identity=pod")
	h.wantPodsIdentity(t)
	own, err := shared.Client().CoreV1().Namespaces().Get(t.Context(), h.namespace, metav1.GetOptions{})
	if err != nil || own.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
		t.Errorf("the namespace is %v, %v, want one that admits privileged pods", own.GetLabels(), err)
	}

	const upgraded = "--set=namespace.create=true,identity=node,changeDetection=Get,kubeletDir=/data/kubelet"
	h.must(t, "upgrade", "refvol", h.chart, upgraded)
	args := h.pluginArgs(t)
	for _, want := range []string{"--identity=node", "--change-detection=Get", "--kubelet-dir=/data/kubelet"} {
		if !slices.Contains(args, want) {
			t.Errorf("after the upgrade the arguments are %q, want %s", args, want)
		}
	}
	if policies := ofRelease(t, "validatingadmissionpolicies"); !strings.HasSuffix(policies, "/refvol-node-identity\n") {
		t.Errorf("after the upgrade there are %q, want the policy of the node's identity", policies)
	}
	const forbidden = "crossNamespace: Forbidden: with identity node"
	if err := h.run(t.Context(), "upgrade", "refvol", h.chart, upgraded+",crossNamespace=true"); err == nil || !strings.Contains(err.Error(), forbidden) {
		t.Errorf("an upgrade to values that exclude each other: %v, want %q", err, forbidden)
	}
	h.must(t, "rollback", "refvol", "1")
	h.wantPodsIdentity(t)

	pod := podWith("in-use", inline(attributes{"configMap": "app"}))
	t.Cleanup(func() { removePods(t) })
	// The API server judges by the policy that is gone for a moment more.
	harness.Eventually(t, time.Minute, func() error {
		_, err := shared.Client().CoreV1().Pods(consumer).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})
	said, err := h.uninstall(t)
	if err == nil {
		t.Error("it was uninstalled while a pod uses the driver")
	}
	says := "pod " + consumer + "/in-use on no node yet\n" +
		"Error: uninstall-check: pods that use the driver csi.refvol.dev: 1: delete them first, as without the plugin they stay in Terminating; switch live namespaces off before (docs/live-namespaces.md)" +
		"; the release is left uninstalling, so go back to its revision first: helm rollback refvol 1 --namespace " + h.namespace + "\n"
	if said != says {
		t.Errorf("the check says %q, want %q", said, says)
	}
	h.wantPodsIdentity(t)
	if err := h.run(t.Context(), "upgrade", "refvol", h.chart, "--reuse-values"); err == nil {
		t.Error("a release that is left uninstalling is upgraded: the text of the check is no help")
	}
	h.must(t, "rollback", "refvol", "1")
	h.must(t, "upgrade", "refvol", h.chart, "--reuse-values")
	h.wantPodsIdentity(t)

	removePods(t)
	if said, err := h.uninstall(t); err != nil || said != "" {
		t.Errorf("without such a pod: %v, and the check says %q", err, said)
	}
	h.wantNothingLeft(t)
}

// wantPodsIdentity wants what the release was installed with, and nothing of what it was upgraded to.
func (h helm) wantPodsIdentity(t *testing.T) {
	t.Helper()
	args := h.pluginArgs(t)
	for _, want := range []string{"--identity=pod", "--kubelet-dir=/var/lib/kubelet"} {
		if !slices.Contains(args, want) {
			t.Errorf("the arguments are %q, want %s", args, want)
		}
	}
	if policies := ofRelease(t, "validatingadmissionpolicies"); policies != "" {
		t.Errorf("there are %q, want no policy", policies)
	}
}

// pluginArgs returns the arguments of the release's plugin.
func (h helm) pluginArgs(t *testing.T) []string {
	t.Helper()
	daemonSet, err := shared.Client().AppsV1().DaemonSets(h.namespace).Get(t.Context(), pluginAccount, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return daemonSet.Spec.Template.Spec.Containers[0].Args
}

// ofRelease returns the names of the objects of some kinds that the release has.
func ofRelease(t *testing.T, kinds string) string {
	t.Helper()
	return mustKubectl(t, "get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/managed-by=Helm", "--output=name")
}

// wantNothingLeft wants no object of the release, nor of its hooks, but the namespace.
func (h helm) wantNothingLeft(t *testing.T) {
	t.Helper()
	const more = ",serviceaccounts,jobs"
	if left := ofRelease(t, kinds+more); left != "" {
		t.Errorf("left are %q", left)
	}
	left := mustKubectl(t, "get", kinds+more, "--all-namespaces", "--selector=app.kubernetes.io/name="+checkName, "--output=name")
	if left != "" {
		t.Errorf("left are %q", left)
	}
	if _, err := shared.Client().CoreV1().Namespaces().Get(t.Context(), h.namespace, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// uninstall uninstalls the release. It does what a cluster would do with the Job of the check, and
// returns what the check's container said.
func (h helm) uninstall(t *testing.T) (said string, err error) {
	t.Helper()
	jobs := shared.Client().BatchV1().Jobs(h.namespace)
	before, err := jobs.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- h.run(t.Context(), "uninstall", "refvol", "--timeout=2m") }()
	var job *batchv1.Job
	harness.Eventually(t, time.Minute, func() error {
		if job, err = jobs.Get(t.Context(), checkName, metav1.GetOptions{}); err != nil {
			return err
		}
		if slices.ContainsFunc(before.Items, func(old batchv1.Job) bool { return old.UID == job.UID }) {
			return fmt.Errorf("the Job is that of an earlier check")
		}
		return nil
	})
	said, err = runJob(t, job)
	end(t, job, err)
	return said, <-ended
}

// runJob runs the Job's container, with its account and the plugin's binary, and returns what it wrote.
func runJob(t *testing.T, job *batchv1.Job) (string, error) {
	t.Helper()
	pod := job.Spec.Template.Spec
	token, err := shared.ServiceAccountToken(t.Context(), job.Namespace, pod.ServiceAccountName, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := shared.WriteKubeconfig(kubeconfig, token); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), shared.plugin, pod.Containers[0].Args...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// end writes into the Job's status how its container ended.
func end(t *testing.T, job *batchv1.Job, failure error) {
	t.Helper()
	now := metav1.Now()
	job.Status.StartTime = &now
	conditions := []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete}
	if failure != nil {
		conditions = []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed}
		job.Status.Failed = 1
	} else {
		job.Status.Succeeded, job.Status.CompletionTime = 1, &now
	}
	for _, condition := range conditions {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{
			Type: condition, Status: corev1.ConditionTrue, Reason: "TheContainerEnded", LastTransitionTime: now,
		})
	}
	if _, err := shared.Client().BatchV1().Jobs(job.Namespace).UpdateStatus(t.Context(), job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestFromKustomizeToHelmAndBack goes the way of docs/install.md. No object is made anew, and the plugins' pods stay as they are.
func TestFromKustomizeToHelmAndBack(t *testing.T) {
	h := newHelm(t)
	h.namespace = pluginNamespace
	components := []string{"node-identity", "admission", "startup-taint", "flow-schema"}
	install(t, components...)
	t.Cleanup(func() { // it removes the records, if the test ends on its way
		ctx := context.WithoutCancel(t.Context())
		err := h.run(ctx, "uninstall", "refvol", "--no-hooks", "--ignore-not-found")
		// The account stays for other tests, without Helm's label.
		_, unlabelled := shared.kubectl(ctx, "--namespace="+pluginNamespace, "label", "serviceaccount", pluginAccount, "app.kubernetes.io/managed-by-")
		if err := errors.Join(err, unlabelled); err != nil {
			t.Error(err)
		}
	})
	objects := func() string {
		return mustKubectl(t, "get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/name=refvol-plugin",
			"--output=jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid}\n{end}")
	}
	template := func() corev1.PodTemplateSpec {
		t.Helper()
		plugin, err := shared.Client().AppsV1().DaemonSets(pluginNamespace).Get(t.Context(), "refvol-plugin", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return plugin.Spec.Template
	}
	all, before := objects(), template()
	want := func(after string) {
		t.Helper()
		if now := objects(); now != all {
			t.Errorf("after %s there are\n%s\nwant\n%s", after, now, all)
		}
		if now := template(); !reflect.DeepEqual(now, before) {
			t.Errorf("after %s the plugin's pods are made by\n%+v\nwant\n%+v", after, now, before)
		}
	}
	toHelm := []string{
		"install", "refvol", h.chart, "--take-ownership", "--force-conflicts",
		"--set=admission.enabled=true,startupTaint.enabled=true,flowSchema.enabled=true",
	}
	h.must(t, toHelm...)
	want("helm install")
	if len(strings.Split(ofRelease(t, kinds), "\n")) != len(strings.Split(all, "\n")) {
		t.Errorf("the release has\n%s\nwant\n%s", ofRelease(t, kinds), all)
	}
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, components...))
	for _, command := range documented(t, "install.md", "--namespace refvol-system delete secrets") {
		mustKubectl(t, command...)
	}
	want("going back")
	if err := h.run(t.Context(), "status", "refvol"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("after going back: %v, want no release", err)
	}
}
