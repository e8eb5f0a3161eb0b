package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/status"
)

const driver = "csi.refvol.dev"

// pluginOn returns a plugin's pod that is ready unless change says otherwise.
func pluginOn(node, name string, change ...func(*corev1.Pod)) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(100, 0)}, Spec: corev1.PodSpec{NodeName: node}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(&pod)
	}
	return pod
}

func notReady(pod *corev1.Pod)    { pod.Status.Conditions[0].Status = corev1.ConditionFalse }
func pending(pod *corev1.Pod)     { pod.Status.Phase = corev1.PodPending }
func terminating(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{} }
func younger(pod *corev1.Pod)     { pod.CreationTimestamp = metav1.Unix(200, 0) }

func csiNode(name string, drivers ...string) storagev1.CSINode {
	n := storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, d := range drivers {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: d})
	}
	return n
}

// options returns the options for a cluster whose plugins, by pod, are on the nodes with their pods' names.
func options(csiNodes []storagev1.CSINode, plugins []corev1.Pod, using []Pod) Options {
	nodes := map[string]string{}
	for _, pod := range plugins {
		nodes[pod.Name] = pod.Spec.NodeName
	}
	return Options{
		Driver: driver, AtOnce: 2, Timeout: time.Second,
		CSINodes: func(context.Context) ([]storagev1.CSINode, error) { return csiNodes, nil },
		Plugins:  func(context.Context) ([]corev1.Pod, error) { return plugins, nil },
		Using:    func(context.Context) ([]Pod, error) { return using, nil },
		Pod: func(context.Context, string, string) (*Pod, error) {
			return nil, errors.New("nobody should ask")
		},
		NodeReady: func(context.Context, string) (bool, error) { return true, nil },
		Fetch: func(_ context.Context, pod string, _ []status.ObjectKey) (*status.Report, error) {
			return &status.Report{Header: status.Header{Driver: driver, Node: nodes[pod], Version: pod}}, nil
		},
	}
}

func survey(t *testing.T, o Options, objects ...Object) *Survey {
	t.Helper()
	return must.Get(o.Collect(t.Context(), objects...))(t)
}

// describe returns a line for each node: its problem, the pod that answered, and its pods.
func describe(s *Survey) []string {
	var lines []string
	for _, n := range s.Nodes {
		line := n.Name
		if n.Problem != nil {
			line += " " + string(n.Problem.Reason)
		}
		if n.Report != nil {
			line += " by " + n.Report.Version
		}
		for _, pod := range n.Pods {
			line += " +" + pod.Name
		}
		lines = append(lines, line)
	}
	return lines
}

// TestEachNodeIsThere that may have a volume. During a rollout, the better pod is asked.
func TestEachNodeIsThere(t *testing.T) {
	s := survey(t, options(
		[]storagev1.CSINode{csiNode("listed", "other", driver), csiNode("foreign", "other"), csiNode("fine", driver)},
		[]corev1.Pod{
			pluginOn("fine", "p-fine"), pluginOn("extra", "p-extra"), pluginOn("", "p-unscheduled"),
			pluginOn("starting", "p-starting", pending), pluginOn("unready", "p-unready", notReady),
			pluginOn("rollout", "old", terminating), pluginOn("rollout", "new", notReady),
			pluginOn("rollout2", "new2", younger, pending), pluginOn("rollout2", "old2", terminating),
			pluginOn("twice", "young", younger), pluginOn("twice", "aged"),
		},
		[]Pod{
			{Name: "a", Node: "fine", Accepted: true},
			{Name: "b", Node: "stranded", Accepted: true},
			{Name: "c"},
			{Name: "d", Node: "fine", Accepted: true},
			{Name: "e", Node: "no-such-node"},
			{Name: "f", Node: "fine"},
		},
	))
	want := []string{
		"extra by p-extra", "fine by p-fine +a +d", "listed NoPlugin", "rollout NotReady by new", "rollout2 by old2",
		"starting NotReady", "stranded NoPlugin +b", "twice by young", "unready NotReady by p-unready",
	}
	if got := describe(s); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var waiting string
	for _, pod := range s.NotAccepted {
		waiting += pod.Name
	}
	if waiting != "cef" {
		t.Errorf("not accepted: %v", s.NotAccepted)
	}
}

// TestARefusalEndsTheSurvey: without the right to ask plugins, nothing is known of any node.
func TestARefusalEndsTheSurvey(t *testing.T) {
	o := options(nil, []corev1.Pod{pluginOn("a", "p-a"), pluginOn("b", "p-b")}, nil)
	refusal := apierrors.NewForbidden(corev1.Resource("pods/proxy"), "p-a", errors.New("no right"))
	o.Fetch = func(context.Context, string, []status.ObjectKey) (*status.Report, error) { return nil, refusal }
	if s, err := o.Collect(t.Context()); !apierrors.IsForbidden(err) || s != nil {
		t.Errorf("got %v, %v", s, err)
	}
}

// TestANodeThatIsNotReady: the node is checked if the plugin is missing, not ready or silent, and the problem is attributed to it.
func TestANodeThatIsNotReady(t *testing.T) {
	plugins := []corev1.Pod{
		pluginOn("fine", "p-fine"), pluginOn("silent", "p-silent"), pluginOn("unready", "p-unready", notReady),
		pluginOn("old", "p-old"), pluginOn("unclear", "p-unclear"), pluginOn("ready", "p-ready"),
	}
	o := options([]storagev1.CSINode{csiNode("without", driver)}, plugins, nil)
	answer := o.Fetch
	o.Fetch = func(ctx context.Context, pod string, _ []status.ObjectKey) (*status.Report, error) {
		switch pod {
		case "p-fine", "p-unready":
			return answer(ctx, pod, nil)
		case "p-old":
			return nil, status.ErrFormat
		}
		return nil, errors.New("no route")
	}
	o.NodeReady = func(ctx context.Context, node string) (bool, error) {
		switch _, bounded := ctx.Deadline(); {
		case !bounded:
			return false, errors.New("no deadline")
		case node == "fine" || node == "old":
			return false, errors.New("nobody should ask")
		case node == "unclear":
			return false, errors.New("no\x1b[2J answer")
		}
		return node == "ready", nil
	}
	s := survey(t, o)
	var got []string
	for _, n := range s.Nodes {
		line := fmt.Sprint(n.Name, " ", n.Report != nil)
		if n.Problem != nil && n.Name != "old" {
			line += fmt.Sprint(" ", n.Problem.Reason, ": ", n.Problem.Message)
		}
		got = append(got, line)
	}
	want := []string{
		"fine true", "old false", "ready false Unreachable: no route", "silent false NodeNotReady: the node is not ready: no route",
		"unclear false Unreachable: no route; whether the node is ready isn't known: no\x1b[2J answer",
		"unready true NodeNotReady: the node is not ready: the plugin's pod is not ready",
		"without false NodeNotReady: the node is not ready: no pod of the plugin is on this node",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAtOnce: at most AtOnce plugins are asked at the same time, each has its Timeout, and each is counted, also if there is no time to ask it.
func TestAtOnce(t *testing.T) {
	for message, test := range map[string]struct {
		plugins, atOnce      int
		timeout, limit, took time.Duration
	}{
		"no answer within 1s: cut off": {7, 3, time.Second, time.Minute, 3 * time.Second},
		"time is up: ":                 {3, 1, time.Minute, time.Second, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var plugins []corev1.Pod
			for i := range test.plugins {
				plugins = append(plugins, pluginOn(fmt.Sprint("n", i), fmt.Sprint("p", i)))
			}
			o := options(nil, plugins, nil)
			o.AtOnce, o.Timeout = test.atOnce, test.timeout
			var running, most atomic.Int32
			o.Fetch = func(ctx context.Context, _ string, _ []status.ObjectKey) (*status.Report, error) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				<-ctx.Done()
				return nil, errors.New("cut off")
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), test.limit, errors.New("time is up"))
			defer cancel()
			began := time.Now()
			s := must.Get(o.Collect(ctx))(t)
			if took := time.Since(began); int(most.Load()) != test.atOnce || took != test.took || len(s.Nodes) != test.plugins {
				t.Errorf("%s: %d nodes, %d at once, in %s; want %+v", message, len(s.Nodes), most.Load(), took, test)
			}
			for _, n := range s.Nodes {
				if n.Problem == nil || n.Problem.Reason != Unreachable || !strings.HasPrefix(n.Problem.Message, message) {
					t.Errorf("got %+v, want %s", n.Problem, message)
				}
			}
		})
	}
}

// TestWhyNot: the status of the containers of a plugin's pod is reported.
func TestWhyNot(t *testing.T) {
	for want, s := range map[string]corev1.PodStatus{
		"the plugin's pod is Pending":                       {Phase: corev1.PodPending},
		"the plugin's pod is not ready: connection refused": {Phase: corev1.PodRunning},
		"the plugin's pod is Pending: Unschedulable: 0/3 nodes are available": {Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"},
		}},
		"the plugin's pod is Pending: container refvol-plugin waits: ImagePullBackOff": {Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "refvol-plugin", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
		}},
		"the plugin's pod is not ready: connection refused: container refvol-plugin waits: CrashLoopBackOff: back-off 40s: " +
			"container refvol-plugin ended with status 1: Error: unknown flag: --resync-intervall": {Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name:                 "refvol-plugin",
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "Usage\nunknown flag: --resync-intervall\n"}},
		}}},
	} {
		plugin := pluginOn("n", "p", notReady)
		conditions := plugin.Status.Conditions
		plugin.Status = s
		plugin.Status.Conditions = append(plugin.Status.Conditions, conditions...)
		o := options(nil, []corev1.Pod{plugin}, nil)
		o.Fetch = func(context.Context, string, []status.ObjectKey) (*status.Report, error) {
			return nil, syscall.ECONNREFUSED
		}
		s := survey(t, o)
		if got := s.Nodes[0].Problem; got == nil || *got != (Problem{NotReady, want}) {
			t.Errorf("got  %+v\nwant %s", got, want)
		}
	}
}

// TestMissing: if a plugin does not report a volume of a pod, the pod is read again. A pod that has ended meanwhile has no volume.
func TestMissing(t *testing.T) {
	pod := func(name string, started bool) Pod {
		return Pod{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Node: "n", Volumes: []string{"a", "b"}, Accepted: true, Started: started}
	}
	using := []Pod{pod("whole", true), pod("half", true), pod("gone", true), pod("again", true), pod("unclear", true), pod("late", false)}
	o := options(nil, []corev1.Pod{pluginOn("n", "p")}, using)
	o.Fetch = func(context.Context, string, []status.ObjectKey) (*status.Report, error) {
		volume := func(pod, name string) status.Volume {
			return status.Volume{Pod: status.Pod{UID: "uid-" + pod}, Name: name}
		}
		return &status.Report{Header: status.Header{Driver: driver, Node: "n"}, Volumes: []status.Volume{volume("whole", "a"), volume("whole", "b"), volume("half", "a"), volume("other", "b")}}, nil
	}
	o.Pod = func(_ context.Context, namespace, name string) (*Pod, error) {
		found := pod(name, true)
		switch {
		case namespace != "shop" || name == "whole" || name == "late":
			t.Errorf("asked for %s/%s", namespace, name)
		case name == "gone":
			return nil, nil //nolint:nilnil // As Options says.
		case name == "again":
			found.UID = "another"
		case name == "unclear":
			return nil, errors.New("no answer")
		}
		return &found, nil
	}
	s := survey(t, o)
	var got []string
	for _, pod := range s.Nodes[0].Missing() {
		got = append(got, pod.Name+": "+strings.Join(pod.Volumes, ","))
	}
	if want := []string{"half: b", "unclear: a,b", "late: a,b"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := len(s.Nodes[0].Pods); n != 4 {
		t.Errorf("%d pods, want 4", n)
	}
}

// TestQuestionAboutObjects: plugins are asked about the objects only. A volume that such a report only names is not missing, and a plugin that
// answers with everything gives the same result.
func TestQuestionAboutObjects(t *testing.T) {
	key := status.ObjectKey{Kind: "Secret", Namespace: "shop", Name: "db"}
	mine := Pod{Namespace: "shop", Name: "a", UID: "uid-a", Node: "n", Volumes: []string{"settings", "other", "third"}, Accepted: true, Started: true}
	other := volumeOf("a", "Current", &older)
	other.Name, other.Objects = "other", other.Objects[:3]
	named := volumeOf("a", "Current", &older)
	filtered := named
	filtered.Objects = named.Objects[3:]
	for what, report := range map[string]*status.Report{
		"of the object":  {Volumes: []status.Volume{filtered}, Others: []status.PodVolumes{{PodUID: "uid-b", Volumes: []string{"third"}}, {PodUID: "uid-a", Volumes: []string{"other"}}}},
		"of all objects": {Volumes: []status.Volume{other, named}},
	} {
		o := options(nil, []corev1.Pod{pluginOn("n", "p")}, []Pod{mine})
		report.Driver, report.Node = driver, "n"
		var asked []status.ObjectKey
		o.Fetch = func(_ context.Context, _ string, objects []status.ObjectKey) (*status.Report, error) {
			asked = objects
			return report, nil
		}
		o.Pod = func(context.Context, string, string) (*Pod, error) { return &mine, nil }
		s := survey(t, o, Object(key))
		var got []string
		for _, l := range Evaluate(Object(key), false, &current, &current, s).Laggards {
			got = append(got, l.Volume+" "+string(l.Reason))
		}
		slices.Sort(got)
		if want := []string{"settings Outdated", "third NotReported"}; !slices.Equal(got, want) || !slices.Equal(asked, []status.ObjectKey{key}) {
			t.Errorf("%s: asked about %v, got %q, want %q", what, asked, got, want)
		}
		if takers := s.Takers(map[Object]status.Version{Object(key): current}); len(takers) != 1 || takers[0].Current {
			t.Errorf("%s: takers %+v", what, takers)
		}
	}
}
