package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/status"
)

// waitingPod returns a pod as a kubelet leaves it if it cannot mount its volume, unless change says otherwise.
func waitingPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := podWith("waits", corev1.PodPending, driver)
	pod.Status.StartTime = &metav1.Time{Time: time.Unix(100, 0)}
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Unix(100, 0),
	}}
	creating := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	initializing := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", State: initializing}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: creating}}
	pod.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", State: creating}}
	for _, f := range change {
		f(&pod)
	}
	return &pod
}

// TestWaits: a pod with any sign that its volumes may have been mounted does not count as waiting.
func TestWaits(t *testing.T) {
	for _, late := range []int64{0, 1} { // seconds between the times that the kubelet writes
		pod := waitingPod(func(pod *corev1.Pod) { pod.Status.Conditions[0].LastTransitionTime = metav1.Unix(100+late, 0) })
		if use, ok := UsesDriver(pod, driver); !ok || !use.Waits || !use.Accepted || use.Started {
			t.Errorf("%d s late: got %+v, %t", late, use, ok)
		}
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	pulls := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	for name, change := range map[string]func(s *corev1.PodStatus){
		"it runs":                    func(s *corev1.PodStatus) { s.Phase = corev1.PodRunning },
		"its phase isn't known":      func(s *corev1.PodStatus) { s.Phase = corev1.PodUnknown },
		"not accepted":               func(s *corev1.PodStatus) { s.StartTime = nil },
		"it has a sandbox":           func(s *corev1.PodStatus) { s.Conditions[0].Status = corev1.ConditionTrue },
		"whether it has isn't known": func(s *corev1.PodStatus) { s.Conditions[0].Status = corev1.ConditionUnknown },
		"nobody says whether it has": func(s *corev1.PodStatus) { s.Conditions = nil },
		"it had a sandbox":           func(s *corev1.PodStatus) { s.Conditions[0].LastTransitionTime = metav1.Unix(160, 0) },
		"its container runs": func(s *corev1.PodStatus) {
			s.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		},
		"its init container ended":    func(s *corev1.PodStatus) { s.InitContainerStatuses[0].State = ended },
		"it ended before":             func(s *corev1.PodStatus) { s.ContainerStatuses[0].LastTerminationState = ended },
		"it was restarted":            func(s *corev1.PodStatus) { s.InitContainerStatuses[0].RestartCount = 1 },
		"it was made":                 func(s *corev1.PodStatus) { s.ContainerStatuses[0].ContainerID = "containerd://1" },
		"a debugging one was made":    func(s *corev1.PodStatus) { s.EphemeralContainerStatuses[0].ContainerID = "containerd://1" },
		"its image is pulled":         func(s *corev1.PodStatus) { s.ContainerStatuses[0].State = pulls },
		"its init's image is pulled":  func(s *corev1.PodStatus) { s.InitContainerStatuses[0].State = pulls },
		"nothing is known of its one": func(s *corev1.PodStatus) { s.ContainerStatuses[0].State = corev1.ContainerState{} },
		"nothing is known of its all": func(s *corev1.PodStatus) { s.ContainerStatuses = nil },
	} {
		use, ok := UsesDriver(waitingPod(func(pod *corev1.Pod) { change(&pod.Status) }), driver)
		if !ok || use.Waits {
			t.Errorf("%s: got %+v, %t", name, use, ok)
		}
	}
}

// waitingCluster is a cluster with a node that has a plugin, and a node "n" without one, on which a pod waits.
type waitingCluster struct {
	csiNodes []storagev1.CSINode
	plugins  []corev1.Pod
	pods     []Pod
	ready    bool
	// later makes the changes before the second look.
	later func(l *waitingCluster)
	// looks counts the lists of plugins.
	looks int
	pod   func(name string) (*Pod, error)
}

func newWaitingCluster() *waitingCluster {
	return &waitingCluster{
		csiNodes: []storagev1.CSINode{csiNode("n", "other"), csiNode("served", driver)},
		plugins:  []corev1.Pod{pluginOn("served", "p")},
		pods:     []Pod{{Namespace: "shop", Name: "a", UID: "uid-a", Node: "n", Volumes: []string{"settings"}, Accepted: true, Waits: true}},
		ready:    true,
	}
}

const settle = 5 * time.Second

// evaluate evaluates the cluster. The plugin has a volume that shows the current version.
func (l *waitingCluster) evaluate(ctx context.Context) (*Result, error) {
	o := options(nil, l.plugins, nil)
	o.Settle = settle
	o.CSINodes = func(context.Context) ([]storagev1.CSINode, error) {
		if l.looks == 1 && l.later != nil {
			l.later(l)
		}
		return l.csiNodes, nil
	}
	o.Plugins = func(context.Context) ([]corev1.Pod, error) {
		l.looks++
		return l.plugins, nil
	}
	o.Using = func(context.Context) ([]Pod, error) { return l.pods, nil }
	o.Pod = func(_ context.Context, _, name string) (*Pod, error) {
		if l.pod != nil {
			return l.pod(name)
		}
		for _, pod := range l.pods {
			if pod.Name == name {
				return &pod, nil
			}
		}
		return nil, nil //nolint:nilnil // As Options says.
	}
	o.NodeReady = func(context.Context, string) (bool, error) { return l.ready, nil }
	o.Fetch = func(context.Context, string, []status.ObjectKey) (*status.Report, error) {
		return &status.Report{Header: status.Header{Driver: driver, Node: "served"}, Volumes: []status.Volume{volumeOf("b", "Current", &current)}}, nil
	}
	s, err := o.Collect(ctx)
	if err != nil {
		return nil, err
	}
	return Evaluate(object, false, &current, &current, s), nil
}

// TestPodsThatWaitForAPlugin do not prevent success: nothing was ever mounted for them. They are read a few at the same time.
func TestPodsThatWaitForAPlugin(t *testing.T) {
	for count, want := range map[int]time.Duration{1: settle + time.Second, 20: settle + 10*time.Second} { // two at the same time
		synctest.Test(t, func(t *testing.T) {
			began, l := time.Now(), newWaitingCluster()
			byName := map[string]Pod{}
			for i := range count {
				pod := l.pods[0]
				pod.Name, pod.UID = fmt.Sprint("a", i), types.UID(fmt.Sprint("uid", i))
				byName[pod.Name] = pod
			}
			l.pods = slices.Collect(maps.Values(byName))
			l.pod = func(name string) (*Pod, error) {
				<-time.After(time.Second)
				pod := byName[name]
				return &pod, nil
			}
			v, err := l.evaluate(t.Context())
			if err != nil || !v.Converged || v.Nodes != 1 || len(v.Laggards) > 0 || len(v.NotPublished) > 0 || len(v.WithoutPlugin) != count {
				t.Fatalf("got %+v, %v", v, err)
			}
			if first := v.WithoutPlugin[0]; first.Node != "n" || first.Pod.Namespace != "shop" || byName[first.Pod.Name].UID != types.UID(first.Pod.UID) {
				t.Errorf("got %+v", first)
			}
			if took := time.Since(began); took != want || l.looks != 2 {
				t.Errorf("it took %s, with %d looks", took, l.looks)
			}
		})
	}
}

// unscheduled returns a plugin's pod that is to be placed on these nodes, or on any node.
func unscheduled(nodes ...string) corev1.Pod {
	return pluginOn("", "p-new", pending, func(pod *corev1.Pod) {
		if len(nodes) == 0 {
			return
		}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: nodes},
			}}},
		}}}
	})
}

// TestADoubtHoldsUp: any sign of a plugin that may have run on the node makes it a laggard.
func TestADoubtHoldsUp(t *testing.T) {
	started := Pod{Namespace: "shop", Name: "b", UID: "uid-b", Node: "n", Volumes: []string{"v"}, Accepted: true, Started: true}
	pulls := Pod{Namespace: "shop", Name: "b", UID: "uid-b", Node: "n", Volumes: []string{"v"}, Accepted: true}
	register := func(l *waitingCluster) { l.csiNodes[0] = csiNode("n", driver) }
	another := func(plugin corev1.Pod) func(*waitingCluster) {
		return func(l *waitingCluster) { l.plugins = append(l.plugins, plugin) }
	}
	later := func(change func(*waitingCluster)) func(*waitingCluster) {
		return func(l *waitingCluster) { l.later = change }
	}
	for name, test := range map[string]struct {
		change func(l *waitingCluster)
		want   Reason
	}{
		"the driver is registered":      {register, NoPlugin},
		"there is no CSINode":           {func(l *waitingCluster) { l.csiNodes = l.csiNodes[1:] }, NoPlugin},
		"a plugin's pod is there":       {another(pluginOn("n", "q", pending)), NotReady},
		"a plugin's pod has failed":     {another(pluginOn("n", "q", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })), NotReady},
		"a plugin's pod is to come":     {another(unscheduled("n")), NoPlugin},
		"a plugin's pod may come":       {another(unscheduled()), NoPlugin},
		"another pod has started":       {func(l *waitingCluster) { l.pods = append(l.pods, started) }, NoPlugin},
		"another pod's image is pulled": {func(l *waitingCluster) { l.pods = append(l.pods, pulls) }, NoPlugin},
		"the node is not ready":         {func(l *waitingCluster) { l.ready = false }, NodeNotReady},
		"a plugin's pod is replaced":    {later(another(unscheduled("n"))), NoPlugin},
		"a plugin's pod comes":          {later(another(pluginOn("n", "q"))), NoPlugin},
		"a plugin restarts":             {later(register), NoPlugin},
		"the CSINode goes":              {later(func(l *waitingCluster) { l.csiNodes = l.csiNodes[1:] }), NoPlugin},
		"the node is cut off meanwhile": {later(func(l *waitingCluster) { l.ready = false }), NoPlugin},
		"the pod starts meanwhile": {later(func(l *waitingCluster) {
			l.pods = slices.Clone(l.pods)
			l.pods[0].Started, l.pods[0].Waits = true, false
		}), NoPlugin},
		"the pod is replaced meanwhile": {later(func(l *waitingCluster) { l.pods = slices.Clone(l.pods); l.pods[0].UID = "new" }), NoPlugin},
		"the pod can't be looked at":    {func(l *waitingCluster) { l.pod = func(string) (*Pod, error) { return nil, errors.New("no answer") } }, NoPlugin},
		"the driver was there at the first look": {func(l *waitingCluster) {
			register(l)
			l.later = func(l *waitingCluster) { l.csiNodes[0] = csiNode("n") }
		}, NoPlugin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newWaitingCluster()
				test.change(l)
				v := must.Get(l.evaluate(t.Context()))(t)
				if v.Converged || len(v.Laggards) == 0 || v.Laggards[0].Node != "n" || v.Laggards[0].Reason != test.want || len(v.WithoutPlugin) > 0 || v.Nodes != 2 {
					t.Errorf("got %+v", v)
				}
			})
		})
	}
}

// TestNoPluginIsNeeded: of a pod that goes meanwhile, and a plugin's pod that is to be placed on another node only.
func TestNoPluginIsNeeded(t *testing.T) {
	for waiting, change := range map[int]func(l *waitingCluster){
		0: func(l *waitingCluster) { l.later = func(l *waitingCluster) { l.pods = nil } },
		1: func(l *waitingCluster) { l.plugins = append(l.plugins, unscheduled("elsewhere")) },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newWaitingCluster()
			change(l)
			if v, err := l.evaluate(t.Context()); err != nil || !v.Converged || len(v.WithoutPlugin) != waiting {
				t.Errorf("got %+v, %v, want %d that wait", v, err, waiting)
			}
		})
	}
}

// TestNoTimeForASecondLook: at the deadline the node is a laggard. After a cancellation there is an error.
func TestNoTimeForASecondLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), settle-1)
		defer cancel()
		if v, err := newWaitingCluster().evaluate(ctx); err != nil || v.Converged || len(v.WithoutPlugin) > 0 {
			t.Errorf("got %+v, %v", v, err)
		}
		ctx, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, interrupt)
		if _, err := newWaitingCluster().evaluate(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}
