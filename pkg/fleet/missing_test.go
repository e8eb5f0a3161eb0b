package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/status"
)

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
	s, err := survey(t, o)
	if err != nil {
		t.Fatal(err)
	}
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
		s, err := o.Collect(t.Context(), Object(key))
		if err != nil {
			t.Fatal(err)
		}
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
