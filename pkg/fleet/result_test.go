package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/status"
)

var (
	object  = Object{"Secret", "shop", "db"}
	current = status.Version{UID: "u", ResourceVersion: "8"}
	older   = status.Version{UID: "u", ResourceVersion: "7"}
	earlier = status.Version{UID: "t", ResourceVersion: "8"}
)

// volumeOf returns a volume of a pod that shows a version of the object, or none for nil.
func volumeOf(pod, condition string, shown *status.Version) status.Volume {
	return status.Volume{
		Name: "settings", Pod: status.Pod{Namespace: "shop", Name: pod, UID: "uid-" + pod}, Condition: condition,
		Objects: []status.VolumeObject{
			{Object: &status.Object{Kind: "ConfigMap", Namespace: "shop", Name: "db"}, Shown: &older},
			{Object: &status.Object{Kind: "Secret", Namespace: "shop", Name: "other"}, Shown: &older},
			{Object: &status.Object{Kind: "Secret", Namespace: "other", Name: "db"}, Shown: &older},
			{Object: &status.Object{Kind: "Secret", Namespace: "shop", Name: "db", State: "present"}, Shown: shown},
		},
	}
}

func saying(v status.Volume, reason string) status.Volume {
	v.Reason = reason
	return v
}

func mounted(v status.Volume) status.Volume {
	v.Bytes = 4096
	return v
}

// withdrawn returns a mounted volume from which the object was withdrawn.
func withdrawn(v status.Volume) status.Volume {
	v.Objects[3].Withdrawn = true
	return mounted(saying(v, "it is refused"))
}

func immutable(v status.Volume) status.Volume {
	object := *v.Objects[3].Object
	object.Immutable = true
	v.Objects[3].Object = &object
	return v
}

// absent makes the object a canary that does not exist for the pod, at a version.
func absent(v status.Volume, at status.Version) status.Volume {
	v.Objects[3].Absent = &at
	return mounted(v)
}

func without(v status.Volume) status.Volume {
	v.Objects = nil
	return v
}

func reports(volumes ...status.Volume) Node {
	return Node{Name: "n", Plugin: "p", Report: &status.Report{Volumes: volumes}}
}

func podOf(name string, started bool) Pod {
	return Pod{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Node: "n", Volumes: []string{"settings"}, Started: started}
}

func runs(node Node, pods ...Pod) Node {
	node.Pods = pods
	return node
}

func troubled(node Node, reason Reason) Node {
	node.Problem = &Problem{Reason: reason, Message: "why"}
	return node
}

func TestEvaluate(t *testing.T) {
	for name, test := range map[string]struct {
		nodes []Node
		// want is a line for each laggard: pod, shown version, reason and message.
		want []string
		// showing of volumes show the version, waiting are not published, and withdrawn are those from which it was withdrawn.
		showing, volumes, waiting, withdrawn int
	}{
		"no node":     {},
		"all show it": {nodes: []Node{reports(volumeOf("a", "Current", &current)), reports(volumeOf("b", "Current", &current))}, showing: 2, volumes: 2},
		"what does not name it is of no account": {nodes: []Node{reports(status.Volume{
			Condition: "RefForbidden", Objects: volumeOf("a", "", nil).Objects[:3],
		})}},
		"no objects at all": {nodes: []Node{reports(without(volumeOf("a", "Current", nil)), without(volumeOf("b", "Pinned", nil)))}},
		"outdated":          {nodes: []Node{reports(volumeOf("a", "Current", &older), volumeOf("b", "Current", &current))}, want: []string{"a 7 Outdated it shows another version"}, showing: 1, volumes: 2},
		"waits for its moment": {
			nodes: []Node{reports(saying(volumeOf("a", "Spreading", &older), "at noon"), volumeOf("b", "Spreading", &current), saying(mounted(volumeOf("c", "Spreading", nil)), "at one"))},
			want:  []string{"a 7 Spreading at noon", "c - Spreading at one"}, showing: 1, volumes: 3,
		},
		"not of the share":              {nodes: []Node{reports(saying(volumeOf("a", "Held", &older), "10%"), volumeOf("b", "Held", &current))}, want: []string{"a 7 Held 10%"}, showing: 1, volumes: 2},
		"stuck":                         {nodes: []Node{reports(saying(volumeOf("a", "VolumeUpdateFailed", &older), "no space left on device"))}, want: []string{"a 7 Outdated no space left on device"}, volumes: 1},
		"an earlier object of the name": {nodes: []Node{reports(volumeOf("a", "Current", &earlier))}, want: []string{"a 8 Outdated it shows an earlier object of this name"}, volumes: 1},
		"pinned to another version": {
			nodes: []Node{reports(volumeOf("a", "Pinned", &older))},
			want:  []string{"a 7 Pinned updatePolicy is Pinned: it shows what it showed first; recreate the pod"}, volumes: 1,
		},
		"pinned to this version": {nodes: []Node{reports(volumeOf("a", "Pinned", &current))}, showing: 1, volumes: 1},
		"a condition that is not known does no harm to what is shown": {nodes: []Node{reports(volumeOf("a", "Sparkling", &current))}, showing: 1, volumes: 1},
		"withdrawn": {
			nodes:   []Node{reports(withdrawn(volumeOf("a", "RefForbidden", nil)), volumeOf("b", "Current", &current))},
			showing: 1, volumes: 1, withdrawn: 1,
		},
		"a canary for other pods": {
			nodes: []Node{reports(absent(volumeOf("a", "Current", nil), current), volumeOf("b", "Current", &current), absent(volumeOf("c", "Current", nil), older))},
			want:  []string{"c - NotShown the files are not known to show it: present"}, showing: 1, volumes: 3,
		},
		"immutable, and only a label has moved": {
			nodes: []Node{reports(immutable(volumeOf("a", "Current", &older)), immutable(volumeOf("b", "VolumeUpdateFailed", &older)), immutable(volumeOf("c", "Current", &earlier)))},
			want:  []string{"b 7 Outdated it shows another version", "c 8 Outdated it shows an earlier object of this name"}, showing: 1, volumes: 3,
		},
		"withdrawn from all": {nodes: []Node{reports(withdrawn(volumeOf("a", "RefForbidden", nil)))}, withdrawn: 1},
		"withdrawn, while another object can't be shown": {
			nodes: []Node{reports(withdrawn(volumeOf("a", "VolumeUpdateFailed", nil)), volumeOf("b", "Current", &older))},
			want:  []string{"b 7 Outdated it shows another version"}, volumes: 1, withdrawn: 1,
		},
		"said to be withdrawn, and shown": {
			nodes: []Node{reports(withdrawn(volumeOf("a", "RefForbidden", &older)))},
			want:  []string{"a 7 Outdated it is refused"}, volumes: 1,
		},
		"refused, and not known to be withdrawn": {
			nodes: []Node{reports(saying(volumeOf("a", "RefForbidden", nil), "secret db is refused"))},
			want:  []string{"a - NotShown the files are not known to show it: secret db is refused"}, volumes: 1,
		},
		"not shown, and nobody says why": {nodes: []Node{reports(volumeOf("a", "Current", nil))}, want: []string{"a - NotShown the files are not known to show it: present"}, volumes: 1},
		"never started, as a key is missing": {
			nodes: []Node{reports(volumeOf("a", "Current", &current), status.Volume{
				Pod: status.Pod{Namespace: "shop", Name: "b"}, Condition: "RefKeyNotFound",
				Objects: []status.VolumeObject{{Object: &status.Object{Kind: "Secret", Namespace: "shop", Name: "db", State: "present"}}},
			})},
			showing: 1, volumes: 1, waiting: 1,
		},
		"mounted, and its only file is not there": {
			nodes: []Node{reports(status.Volume{
				Pod: status.Pod{Namespace: "shop", Name: "b"}, Condition: "RefDeleted", Bytes: 4096,
				Objects: []status.VolumeObject{{Object: &status.Object{Kind: "Secret", Namespace: "shop", Name: "db", State: "present"}}},
			})},
			want: []string{"b - NotShown the files are not known to show it: present"}, volumes: 1,
		},
		"being published": {nodes: []Node{reports(volumeOf("a", "Publishing", nil))}, want: []string{"a - Publishing the volume is being published"}, volumes: 1},
		"being published, and nothing is known of it": {
			nodes: []Node{reports(without(volumeOf("a", "Publishing", nil)))},
			want:  []string{"a - ObjectsUnknown the plugin doesn't know yet which objects the volume names"},
		},
		"being published, of other objects": {nodes: []Node{reports(status.Volume{Condition: "Publishing", Objects: []status.VolumeObject{{Object: &status.Object{Kind: "Secret", Namespace: "other", Name: "other"}}}})}},
		"not taken over": {
			nodes: []Node{reports(without(saying(volumeOf("a", "Unknown", nil), "mounted by an earlier process")))},
			want:  []string{"a - ObjectsUnknown the plugin doesn't know yet which objects the volume names: mounted by an earlier process"},
		},
		"taken over, and perhaps half written": {
			nodes: []Node{reports(saying(volumeOf("a", "Unknown", nil), "not synced yet"))},
			want:  []string{"a - NotShown the files are not known to show it: not synced yet"}, volumes: 1,
		},
		"no objects and a condition that is not known": {
			nodes: []Node{reports(without(volumeOf("a", "Sparkling", nil)))},
			want:  []string{"a - ObjectsUnknown the plugin doesn't know yet which objects the volume names"},
		},
		"a node that doesn't answer": {
			nodes: []Node{runs(troubled(Node{Name: "n"}, Unreachable), podOf("a", true), podOf("b", false))},
			want:  []string{"- - Unreachable why; running there with volumes of the driver: shop/a, shop/b"},
		},
		"a plugin that is not ready counts, and so do its volumes": {
			nodes: []Node{troubled(reports(volumeOf("a", "Current", &older), volumeOf("b", "Current", &current)), NotReady)},
			want:  []string{"- - NotReady why", "a 7 Outdated it shows another version"}, showing: 1, volumes: 2,
		},
		"another pod of the name": {
			nodes: []Node{runs(reports(volumeOf("a", "Current", &current)), Pod{Name: "a", UID: "new", Volumes: []string{"settings"}, Started: true})},
			want:  []string{"a - NotReported the pod runs, and the plugin doesn't report its volume, which may show the object"}, showing: 1, volumes: 1,
		},
		"a volume whose pod is gone": {nodes: []Node{reports(volumeOf("a", "Current", &older))}, want: []string{"a 7 Outdated it shows another version"}, volumes: 1},
		"a hostile report speaks for its own node only": {
			nodes: []Node{
				reports(status.Volume{}, status.Volume{Objects: []status.VolumeObject{{Object: &status.Object{Kind: "secret", Namespace: "shop", Name: "db"}, Shown: &current}}}),
				reports(volumeOf("a", "Current", &older)),
			},
			want: []string{" - ObjectsUnknown the plugin doesn't know yet which objects the volume names", "a 7 Outdated it shows another version"}, volumes: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := Evaluate(object, false, &current, &current, &Survey{Nodes: test.nodes})
			var got []string
			for _, l := range v.Laggards {
				pod, shown := "-", "-"
				if l.Pod != nil {
					pod = l.Pod.Name
				}
				if l.Shown != nil {
					shown = l.Shown.ResourceVersion
				}
				got = append(got, fmt.Sprintf("%s %s %s %s", pod, shown, l.Reason, l.Message))
			}
			if !slices.Equal(got, test.want) || v.Showing != test.showing || v.Volumes != test.volumes || len(v.NotPublished) != test.waiting || len(v.Withdrawn) != test.withdrawn {
				t.Errorf("%d of %d, %d wait, %d withdrawn, laggards\n%s\nwant %d of %d, %d wait, %d withdrawn,\n%s", v.Showing, v.Volumes, len(v.NotPublished), len(v.Withdrawn),
					strings.Join(got, "\n"), test.showing, test.volumes, test.waiting, test.withdrawn, strings.Join(test.want, "\n"))
			}
			if none := len(test.want) == 0 && test.volumes+test.withdrawn == 0; v.None != none || v.Converged != (len(test.want) == 0 && !none) || v.Nodes != len(test.nodes) {
				t.Errorf("converged: %v, none: %v, %d nodes", v.Converged, v.None, v.Nodes)
			}
			if v.AcceptNone(); v.Converged != (len(test.want) == 0) || v.None {
				t.Errorf("none is accepted: converged: %v, none: %v", v.Converged, v.None)
			}
		})
	}
}

// TestRevisions: an object that carries another revision than the wanted one has not converged, and one that does not exist has none.
func TestRevisions(t *testing.T) {
	for name, test := range map[string]struct {
		wanted, has         string
		current             *status.Version
		converged, isAnswer bool
	}{
		"the wanted one": {"r1", "r1", &current, true, false}, "another one": {"r1", "r2", &current, false, true},
		"none": {"r1", "", &current, false, true}, "none wanted": {"", "r1", &current, true, false}, "no object": {"r1", "", nil, false, false},
	} {
		v := &Result{Current: test.current, Converged: test.current != nil}
		if v.RequireRevision(test.wanted, test.has); v.Converged != test.converged || v.HasOtherRevision() != test.isAnswer {
			t.Errorf("%s: converged %t, another revision %t", name, v.Converged, v.HasOtherRevision())
		}
	}
}

// environment turns a volume into the environment volume.
func environment(v status.Volume) status.Volume {
	v.Name = status.EnvironmentVolume
	return v
}

// TestNotCovered: variables are covered with --opened, if the pod has the sidecar.
func TestNotCovered(t *testing.T) {
	for opened, want := range map[bool]string{
		false: "native references: env, envFrom, and volumes of type configMap, secret and projected that no refvol volume shows",
		true:  "native references: env and envFrom of pods without the label refvol.dev/restart, and volumes of type configMap, secret and projected that no refvol volume shows",
	} {
		if got := Evaluate(object, opened, &current, &current, &Survey{}).NotCovered; got[0] != want {
			t.Errorf("with --opened %t: %q, want %q", opened, got[0], want)
		}
	}
}

// TestEvaluateOpened: with --opened, each volume's files of the object must be opened, and the others are named with the reason.
func TestEvaluateOpened(t *testing.T) {
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	volume := func(pod, opened string, shown *status.Version, count int, paths ...string) status.Volume {
		v := volumeOf(pod, "Current", shown)
		o := &v.Objects[3]
		if o.Opened, o.Unopened, o.UnopenedCount, o.ShownSince = opened, paths, count, &since; opened == "yes" {
			o.Opened, o.OpenedAt = "", &since
		}
		return v
	}
	for name, test := range map[string]struct {
		volumes []status.Volume
		opened  int
		want    []string
	}{
		"all":          {[]status.Volume{volume("a", "yes", &current, 0), volume("b", "yes", &current, 0)}, 2, nil},
		"not one":      {[]status.Volume{volume("a", "yes", &current, 0), volume("b", "no", &current, 1, "p")}, 1, []string{"b NotOpened nobody has opened p, shown since 2026-01-01T00:00:00Z"}},
		"many":         {[]status.Volume{volume("a", "no", &current, 9, "p", "q")}, 0, []string{"a NotOpened nobody has opened p, q and 7 more files, shown since 2026-01-01T00:00:00Z"}},
		"missed":       {[]status.Volume{volume("a", "unknown", &current, 1, "p")}, 0, []string{"a OpenUnknown the plugin has not seen all opens of p, shown since 2026-01-01T00:00:00Z: replace the pod, or wait until it opens them again"}},
		"unsupported":  {[]status.Volume{volume("a", "unsupported", &current, 0)}, 0, []string{"a OpenUnknown the node's plugin can't see whether files are opened"}},
		"not reported": {[]status.Volume{volume("a", "", &current, 0)}, 0, []string{"a OpenUnknown the node's plugin can't see whether files are opened"}},
		"older variables": {
			[]status.Volume{environment(volume("a", "no", &current, 1, "applied")), environment(volume("b", "yes", &current, 0)), environment(volume("c", "unknown", &current, 1, "want"))},
			1,
			[]string{
				"a NotOpened the containers run with older variables, or have not started, since 2026-01-01T00:00:00Z",
				"c OpenUnknown the plugin has not seen all opens of want, shown since 2026-01-01T00:00:00Z: replace the pod, or wait until it opens them again",
			},
		},
		"another version was opened": {[]status.Volume{volume("a", "yes", &older, 0)}, 0, []string{"a Outdated it shows another version"}},
	} {
		survey := &Survey{Nodes: []Node{reports(test.volumes...)}}
		v := Evaluate(object, true, &current, &current, survey)
		var got []string
		for _, l := range v.Laggards {
			got = append(got, fmt.Sprintf("%s %s %s", l.Pod.Name, l.Reason, l.Message))
		}
		if *v.Opened != test.opened || v.Converged != (test.want == nil) || !slices.Equal(got, test.want) {
			t.Errorf("%s: %d opened, converged: %t, laggards\n%s\nwant %d,\n%s", name, *v.Opened, v.Converged, strings.Join(got, "\n"), test.opened, strings.Join(test.want, "\n"))
		}
		if v := Evaluate(object, false, &current, &current, survey); v.Opened != nil || name != "another version was opened" && !v.Converged {
			t.Errorf("%s: without --opened: %+v", name, v)
		}
	}
}

// TestEvaluateCanary: a canary has converged if it is shown, or known to be for other pods, everywhere.
func TestEvaluateCanary(t *testing.T) {
	survey := &Survey{Nodes: []Node{reports(absent(volumeOf("a", "Current", nil), current), volumeOf("b", "Current", &current))}}
	if v := Evaluate(object, false, &current, &current, survey); !v.Converged || v.NotForPod != 1 || v.Showing != 1 || v.Volumes != 2 {
		t.Errorf("%+v", v)
	}
}

// TestJudgeOfAnotherVersion: success is only possible for the version that the object had all the time. Without volumes, only such an object is
// accepted with AcceptNone.
func TestJudgeOfAnotherVersion(t *testing.T) {
	for name, test := range map[string]struct {
		before, after *status.Version
		converged     bool
		laggards      int
	}{
		"the same":                      {&current, &current, true, 0},
		"a change that has arrived":     {&older, &current, false, 0},
		"a change that has not arrived": {&current, &older, false, 1},
		"created meanwhile":             {nil, &current, false, 0},
		"deleted meanwhile":             {&current, nil, false, 0},
		"recreated":                     {&current, &earlier, false, 1},
		"never there":                   {nil, nil, false, 0},
	} {
		others := []Pod{podOf("b", false)}
		v := Evaluate(object, false, test.before, test.after, &Survey{Nodes: []Node{reports(volumeOf("a", "Current", &current))}, NotAccepted: others})
		if v.Converged != test.converged || len(v.Laggards) != test.laggards || v.Changed != (test.after != nil && !test.converged) {
			t.Errorf("%s: converged %v, changed %v, %d laggards", name, v.Converged, v.Changed, len(v.Laggards))
		}
		v = Evaluate(object, false, test.before, test.after, &Survey{Nodes: []Node{reports()}, NotAccepted: others})
		if v.None != test.converged || v.Converged {
			t.Errorf("%s, without volumes: none %v, converged %v", name, v.None, v.Converged)
		}
		if v.AcceptNone(); v.None || v.Converged != test.converged {
			t.Errorf("%s, accepted: none %v, converged %v", name, v.None, v.Converged)
		}
	}
}

// TestNames: the first five pods, and how many more there are.
func TestNames(t *testing.T) {
	var pods []Pod
	for i := range 7 {
		pods = append(pods, Pod{Namespace: "shop", Name: fmt.Sprint(i)})
	}
	for n, want := range map[int]string{
		0: "", 1: "shop/0", 5: "shop/0, shop/1, shop/2, shop/3, shop/4", 7: "shop/0, shop/1, shop/2, shop/3, shop/4, and 2 more",
	} {
		if got := names(pods[:n]); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}
