package suite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// liveNamespace makes a namespace whose new pods are changed, or leaves the test out where the API server
// can't change them.
func liveNamespace(t *testing.T) *namespace {
	t.Helper()
	n := newNamespace(t)
	n.makeLive()
	return n
}

// makeLive puts the label on the namespace, and waits until new pods are changed.
func (n *namespace) makeLive() {
	n.t.Helper()
	_, err := n.client.AdmissionregistrationV1().MutatingAdmissionPolicies().Get(n.t.Context(), "refvol-live", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		leaveOut(n.t, "the API server lacks the policies of live namespaces, which need Kubernetes 1.36")
	}
	if err != nil {
		n.t.Fatal(err)
	}
	const label = `{"metadata": {"labels": {"refvol.dev/live": "true"}}}`
	if _, err := n.client.CoreV1().Namespaces().Patch(n.t.Context(), n.name, types.MergePatchType, []byte(label), metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, podTimeout, "pods are changed", func(ctx context.Context) error {
		dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		pod, err := n.client.CoreV1().Pods(n.name).Create(ctx, newPod("sentinel", native("settings", "settings")), dryRun)
		if err != nil {
			return err
		}
		return live(pod)
	})
}

// live returns an error if a container of the pod mounts a native volume.
func live(pod *corev1.Pod) error {
	shown := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.CSI != nil && v.CSI.Driver == nodeIdentityDriver {
			shown[v.Name] = v.CSI.VolumeAttributes["volume"]
		}
	}
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if !strings.HasPrefix(m.MountPath, mountDir) {
				continue
			}
			if want := strings.TrimPrefix(m.MountPath, mountDir); shown[m.Name] != want {
				return fmt.Errorf("pod %s mounts %s at %s", pod.Name, m.Name, m.MountPath)
			}
		}
	}
	return nil
}

// The same manifest in two namespaces shows the same files: one has the kubelet's volumes, the other the plugin's.
func TestLiveNamespaceParity(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{kindConfigMap, kindSecret} {
		for _, who := range identities() {
			t.Run(kind+"/"+who.name, func(t *testing.T) {
				t.Parallel()
				plain, lives := newNamespace(t), liveNamespace(t)
				cases := staticCases(kind)
				byKubelet, byPlugin := plain.startNative(who, cases), lives.startNative(who, cases)
				if err := live(byPlugin.Pod); err != nil {
					t.Fatal(err)
				}
				if err := live(byKubelet.Pod); err == nil {
					t.Fatal("the pod of the other namespace was changed")
				}
				seen := &differences{seen: map[string]bool{}}
				kubelets, plugins := byKubelet.snapshots(t), byPlugin.snapshots(t)
				for _, c := range cases {
					name := c.name + nativeSuffix
					if len(kubelets[name]) < 3 {
						t.Errorf("%s: the kubelet's volume has no more than %q", c.name, kubelets[name])
					}
					for _, d := range seen.unknown(compare(kubelets[name], plugins[name])) {
						t.Errorf("%s: %s", c.name, d)
					}
				}
			})
		}
	}
}

// startNative starts a pod with the native volume of each case.
func (n *namespace) startNative(who identity, cases []parityCase) *pod {
	n.t.Helper()
	var volumes []corev1.Volume
	for _, c := range cases {
		for _, o := range c.objects {
			n.put(o.kind, o.name, *o.contents)
		}
		volumes = append(volumes, c.view.native(c.name+nativeSuffix))
	}
	spec := newPod("reader", volumes...)
	spec.Spec.SecurityContext = &who.security
	return n.start(spec)
}

// Each of ten changes is visible at once, through a mount that the manifest has of a native volume.
func TestLiveNamespaceChange(t *testing.T) {
	n := liveNamespace(t)
	n.createConfigMap("settings", object{"key": "change 0"})
	p := n.start(newPod("reader", native("settings", "settings")))
	if err := live(p.Pod); err != nil {
		t.Fatal(err)
	}
	bare, err := harness.WatchBare(t.Context(), n.client, n.name, "settings")
	if err != nil {
		t.Fatal(err)
	}
	var all, bareAll []time.Duration
	for i := 1; i <= 10; i++ {
		text := fmt.Sprintf("change %d", i)
		w := p.await(mountDir+"settings/key", text, podTimeout)
		before := time.Now()
		version := n.updateConfigMap("settings", object{"key": text}).ResourceVersion
		got := w.arrive()
		at, err := bare.Arrived(t.Context(), version)
		if err != nil {
			t.Fatal(err)
		}
		took, bareTook := got.at.Sub(before), at.Sub(before)
		all, bareAll = append(all, took), append(bareAll, bareTook)
		t.Logf("%s: in the container after %s, at a watch after %s", text, milliseconds(took), milliseconds(bareTook))
	}
	if median, limit := harness.Median(all), medianLimit(bareAll); median >= limit {
		t.Errorf("a change took %s, want %s at most", milliseconds(median), milliseconds(limit))
	}
}

// A native volume whose object is missing holds the pod, which starts as soon as the object appears.
func TestLiveNamespaceMissingObject(t *testing.T) {
	t.Parallel()
	n := liveNamespace(t)
	p := n.create(newPod("waiting", one(source(kindSecret, "login")).native("login")))
	p.awaitEvent(`Secret "` + n.name + `/login" not found`)
	if got := p.phase(t); got != corev1.PodPending {
		t.Fatalf("the pod is %s without its Secret", got)
	}
	before := time.Now()
	n.createSecret("login", object{"user": canary("admin")})
	p.awaitReady()
	took := time.Since(before)
	t.Logf("the pod is ready %s after the Secret's creation", milliseconds(took))
	if took >= busyLimit {
		t.Errorf("it took %s", milliseconds(took))
	}
	if err := errors.Join(live(p.Pod), p.hasText(t.Context(), "probe", mountDir+"login/user", canary("admin"))); err != nil {
		t.Error(err)
	}
}

// The pods of each kind of workload stay as they are when their namespace becomes live. Rolled, they are live, and follow
// a change.
func TestLiveNamespaceRollout(t *testing.T) {
	t.Parallel()
	for kind, replicas := range map[string]int{"deployments": 2, "statefulsets": 2, "daemonsets": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			n.createConfigMap("settings", object{"key": "first"})
			n.createReaders(kind, replicas)
			old := n.awaitReaders(replicas, func(*corev1.Pod) bool { return true })
			n.makeLive()
			for _, p := range old {
				now, err := n.client.CoreV1().Pods(n.name).Get(t.Context(), p.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if live(now) == nil || now.UID != p.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
					t.Errorf("the running pod %s has changed", p.Name)
				}
			}
			const annotation = "kubectl.kubernetes.io/restartedAt"
			const restart = `{"spec": {"template": {"metadata": {"annotations": {"` + annotation + `": "now"}}}}}`
			err := n.client.AppsV1().RESTClient().Patch(types.StrategicMergePatchType).Namespace(n.name).Resource(kind).Name("reader").
				Body([]byte(restart)).Do(t.Context()).Error()
			if err != nil {
				t.Fatal(err)
			}
			rolled := n.awaitReaders(replicas, func(p *corev1.Pod) bool { return p.Annotations[annotation] == "now" })
			n.updateConfigMap("settings", object{"key": "second"})
			for _, p := range rolled {
				if err := live(p.Pod); err != nil {
					t.Error(err)
				}
				p.awaitText(mountDir+"settings/key", "second", busyLimit)
			}
		})
	}
}

// createReaders creates a workload of a kind with pods that mount the native volume of a ConfigMap. A DaemonSet has one, on a
// node that runs the plugin.
func (n *namespace) createReaders(kind string, replicas int) {
	n.t.Helper()
	labels := map[string]string{"app": "reader"}
	meta, selector := metav1.ObjectMeta{Name: "reader"}, &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: newPod("", native("settings", "settings")).Spec}
	apps, create := n.client.AppsV1(), metav1.CreateOptions{}
	var err error
	switch kind {
	case "deployments":
		_, err = apps.Deployments(n.name).Create(n.t.Context(), &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(replicas)), Selector: selector, Template: template,
		}}, create)
	case "statefulsets":
		_, err = apps.StatefulSets(n.name).Create(n.t.Context(), &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(replicas)), Selector: selector, Template: template,
		}}, create)
	case "daemonsets":
		template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.worker(n.t)}
		_, err = apps.DaemonSets(n.name).Create(n.t.Context(), &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{
			Selector: selector, Template: template,
		}}, create)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// awaitReaders waits until the workload has all pods, ready and as they should be, and no others.
func (n *namespace) awaitReaders(replicas int, right func(*corev1.Pod) bool) []*pod {
	n.t.Helper()
	var readers []*pod
	eventually(n.t, podTimeout, "pods of the workload", func(ctx context.Context) error {
		readers = nil
		pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{LabelSelector: "app=reader"})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if !ready(p) || !right(p) || p.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is %s", p.Name, p.Status.Phase)
			}
			readers = append(readers, &pod{n, p})
		}
		if len(readers) != replicas {
			return fmt.Errorf("there are %d", len(readers))
		}
		return nil
	})
	return readers
}
