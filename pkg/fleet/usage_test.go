package fleet

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podWith returns a pod with an inline volume of each driver.
func podWith(name string, phase corev1.PodPhase, drivers ...string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, UID: types.UID("uid-of-" + name)}}
	pod.Spec.NodeName, pod.Status.Phase = "node-of-"+name, phase
	pod.Spec.Volumes = []corev1.Volume{{Name: "scratch"}}
	for i, driver := range drivers {
		v := corev1.Volume{Name: fmt.Sprint("v", i)}
		v.CSI = &corev1.CSIVolumeSource{Driver: driver}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
	return pod
}

// pagesOf returns a server of pages. After the last one it fails with err, if that is not nil.
func pagesOf(t *testing.T, err error, pages ...[]corev1.Pod) ListPods {
	return func(_ context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
		page := 0
		if opts.Continue != "" {
			if _, err := fmt.Sscan(opts.Continue, &page); err != nil {
				t.Fatal(err)
			}
		}
		if opts.Limit != 500 {
			t.Errorf("a page of %d pods, want 500", opts.Limit)
		}
		if page == len(pages) {
			return nil, err
		}
		list := &corev1.PodList{Items: pages[page]}
		if page+1 < len(pages) || err != nil {
			list.Continue = fmt.Sprint(page + 1)
		}
		return list, nil
	}
}

func TestUsing(t *testing.T) {
	unscheduled := podWith("waits", corev1.PodPending, driver)
	unscheduled.Spec.NodeName = ""
	starting, initializing := podWith("starts", corev1.PodPending, driver, driver), podWith("initializes", corev1.PodPending, driver)
	starting.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}}
	starting.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "of another pod"} // anybody may write that
	initializing.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "static"}
	initializing.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: initializing.Spec.NodeName}}
	initializing.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", ContainerID: "containerd://1"}}
	accepted, placed := podWith("accepted", corev1.PodPending, driver), podWith("placed", corev1.PodPending, driver)
	accepted.Status.StartTime = &metav1.Time{}
	placed.Status.HostIP = "10.0.0.1"
	pods := pagesOf(t, nil,
		[]corev1.Pod{podWith("runs", corev1.PodRunning, "other.example.com", driver), podWith("other", corev1.PodRunning, "other.example.com"), podWith("none", corev1.PodRunning)},
		nil,
		[]corev1.Pod{podWith("done", corev1.PodSucceeded, driver), podWith("failed", corev1.PodFailed, driver), podWith("lost", corev1.PodUnknown, driver), unscheduled, starting, initializing, accepted, placed},
	)
	want := []Pod{
		{Namespace: "apps", Name: "runs", UID: "uid-of-runs", Node: "node-of-runs", Volumes: []string{"v1"}, Accepted: true, Started: true},
		{Namespace: "apps", Name: "lost", UID: "uid-of-lost", Node: "node-of-lost", Volumes: []string{"v0"}, Accepted: true, Started: true},
		{Namespace: "apps", Name: "waits", UID: "uid-of-waits", Volumes: []string{"v0"}},
		{Namespace: "apps", Name: "starts", UID: "uid-of-starts", Node: "node-of-starts", Volumes: []string{"v0", "v1"}},
		{Namespace: "apps", Name: "initializes", UID: "static", Node: "node-of-initializes", Volumes: []string{"v0"}, Accepted: true, Started: true},
		{Namespace: "apps", Name: "accepted", UID: "uid-of-accepted", Node: "node-of-accepted", Volumes: []string{"v0"}, Accepted: true},
		{Namespace: "apps", Name: "placed", UID: "uid-of-placed", Node: "node-of-placed", Volumes: []string{"v0"}, Accepted: true},
	}
	if got, err := Using(t.Context(), pods, driver); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// TestHolding: before an uninstall the administrator hears of each pod whose mounts only the plugin can remove.
func TestHolding(t *testing.T) {
	on := func(node string, pod corev1.Pod) corev1.Pod {
		pod.Spec.NodeName = node
		return pod
	}
	deleted := func(pod corev1.Pod) corev1.Pod {
		pod.DeletionTimestamp = &metav1.Time{}
		return pod
	}
	plugin := func(node string, ready corev1.ConditionStatus) corev1.Pod {
		pod := on(node, podWith("plugin-on-"+node, corev1.PodRunning))
		pod.Labels = map[string]string{"app": "refvol"}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		return pod
	}
	pods := pagesOf(t, nil, []corev1.Pod{
		on("served", podWith("runs", corev1.PodRunning, driver)),
		on("served", podWith("done", corev1.PodSucceeded, driver)),
		deleted(on("served", podWith("goes", corev1.PodSucceeded, driver))),
		on("served", podWith("other", corev1.PodRunning, "other.example.com")),
		on("not-ready", podWith("left", corev1.PodFailed, driver)),
		on("ends", podWith("late", corev1.PodSucceeded, driver)),
		on("none", podWith("alone", corev1.PodSucceeded, driver)),
		on("", podWith("never-placed", corev1.PodFailed, driver)),
	}, []corev1.Pod{
		plugin("served", corev1.ConditionTrue), plugin("not-ready", corev1.ConditionFalse), deleted(plugin("ends", corev1.ConditionTrue)),
	})
	isPlugin := func(pod *corev1.Pod) bool { return pod.Labels["app"] == "refvol" }
	holding, err := Holding(t.Context(), pods, driver, isPlugin)
	names := make([]string, len(holding))
	for i, pod := range holding {
		names[i] = pod.Name
	}
	if want := []string{"runs", "goes", "left", "late", "alone"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("got %q, %v, want %q", names, err, want)
	}
}
