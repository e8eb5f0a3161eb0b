package fleet

import (
	"fmt"
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
	type evaluated struct {
		// want is how many volumes show the version, wait or have it withdrawn, and each laggard: pod, shown version, reason and message.
		want  string
		nodes []Node
	}
	row := func(want string, nodes ...Node) evaluated { return evaluated{want, nodes} }
	for name, test := range map[string]evaluated{
		"no node":                                row("0 of 0"),
		"all show it":                            row("2 of 2", reports(volumeOf("a", "Current", &current)), reports(volumeOf("b", "Current", &current))),
		"what does not name it is of no account": row("0 of 0", reports(status.Volume{Condition: "RefForbidden", Objects: volumeOf("a", "", nil).Objects[:3]})),
		"no objects at all":                      row("0 of 0", reports(without(volumeOf("a", "Current", nil)), without(volumeOf("b", "Pinned", nil)))),
		"outdated":                               row("1 of 2: a 7 Outdated it shows another version", reports(volumeOf("a", "Current", &older), volumeOf("b", "Current", &current))),
		"waits for its moment": row("1 of 3: a 7 Spreading at noon; c - Spreading at one",
			reports(saying(volumeOf("a", "Spreading", &older), "at noon"), volumeOf("b", "Spreading", &current), saying(mounted(volumeOf("c", "Spreading", nil)), "at one"))),
		"not of the share":              row("1 of 2: a 7 Held 10%", reports(saying(volumeOf("a", "Held", &older), "10%"), volumeOf("b", "Held", &current))),
		"stuck":                         row("0 of 1: a 7 Outdated no space left on device", reports(saying(volumeOf("a", "VolumeUpdateFailed", &older), "no space left on device"))),
		"an earlier object of the name": row("0 of 1: a 8 Outdated it shows an earlier object of this name", reports(volumeOf("a", "Current", &earlier))),
		"pinned to another version": row("0 of 1: a 7 Pinned updatePolicy is Pinned: it shows what it showed first; recreate the pod",
			reports(volumeOf("a", "Pinned", &older))),
		"pinned to this version": row("1 of 1", reports(volumeOf("a", "Pinned", &current))),
		"a condition that is not known does no harm to what is shown": row("1 of 1", reports(volumeOf("a", "Sparkling", &current))),
		"withdrawn": row("1 of 1, 1 withdrawn", reports(withdrawn(volumeOf("a", "RefForbidden", nil)), volumeOf("b", "Current", &current))),
		"a canary for other pods": row("1 of 3, 1 for other pods: c - NotShown the files are not known to show it: present",
			reports(absent(volumeOf("a", "Current", nil), current), volumeOf("b", "Current", &current), absent(volumeOf("c", "Current", nil), older))),
		"a canary that is shown or for other pods": row("1 of 2, 1 for other pods",
			reports(absent(volumeOf("a", "Current", nil), current), volumeOf("b", "Current", &current))),
		"immutable, and only a label has moved": row("1 of 3: b 7 Outdated it shows another version; c 8 Outdated it shows an earlier object of this name",
			reports(immutable(volumeOf("a", "Current", &older)), immutable(volumeOf("b", "VolumeUpdateFailed", &older)), immutable(volumeOf("c", "Current", &earlier)))),
		"an immutable canary for other pods": row("0 of 2, 1 for other pods: b - NotShown the files are not known to show it: present",
			reports(immutable(absent(volumeOf("a", "Current", nil), older)), immutable(absent(volumeOf("b", "Current", nil), earlier)))),
		"withdrawn from all": row("0 of 0, 1 withdrawn", reports(withdrawn(volumeOf("a", "RefForbidden", nil)))),
		"withdrawn, while another object can't be shown": row("0 of 1, 1 withdrawn: b 7 Outdated it shows another version",
			reports(withdrawn(volumeOf("a", "VolumeUpdateFailed", nil)), volumeOf("b", "Current", &older))),
		"said to be withdrawn, and shown": row("0 of 1: a 7 Outdated it is refused", reports(withdrawn(volumeOf("a", "RefForbidden", &older)))),
		"refused, and not known to be withdrawn": row("0 of 1: a - NotShown the files are not known to show it: secret db is refused",
			reports(saying(volumeOf("a", "RefForbidden", nil), "secret db is refused"))),
		"not shown, and nobody says why": row("0 of 1: a - NotShown the files are not known to show it: present", reports(volumeOf("a", "Current", nil))),
		"never started, as a key is missing": row("1 of 1, 1 wait",
			reports(volumeOf("a", "Current", &current), status.Volume{Condition: "RefKeyNotFound", Objects: volumeOf("b", "", nil).Objects[3:]})),
		"mounted, and its only file is not there": row("0 of 1: b - NotShown the files are not known to show it: present", reports(mounted(volumeOf("b", "RefDeleted", nil)))),
		"being published":                         row("0 of 1: a - Publishing the volume is being published", reports(volumeOf("a", "Publishing", nil))),
		"being published, and nothing is known of it": row("0 of 0: a - ObjectsUnknown the plugin doesn't know yet which objects the volume names",
			reports(without(volumeOf("a", "Publishing", nil)))),
		"being published, of other objects": row("0 of 0",
			reports(status.Volume{Condition: "Publishing", Objects: []status.VolumeObject{{Object: &status.Object{Kind: "Secret", Namespace: "other", Name: "other"}}}})),
		"not taken over": row("0 of 0: a - ObjectsUnknown the plugin doesn't know yet which objects the volume names: mounted by an earlier process",
			reports(without(saying(volumeOf("a", "Unknown", nil), "mounted by an earlier process")))),
		"taken over, and perhaps half written": row("0 of 1: a - NotShown the files are not known to show it: not synced yet",
			reports(saying(volumeOf("a", "Unknown", nil), "not synced yet"))),
		"no objects and a condition that is not known": row("0 of 0: a - ObjectsUnknown the plugin doesn't know yet which objects the volume names",
			reports(without(volumeOf("a", "Sparkling", nil)))),
		"a node that doesn't answer": row("0 of 0: - - Unreachable why; running there with volumes of the driver: shop/a, shop/b",
			runs(troubled(Node{Name: "n"}, Unreachable), podOf("a", true), podOf("b", false))),
		"a plugin that is not ready counts, and so do its volumes": row("1 of 2: - - NotReady why; a 7 Outdated it shows another version",
			troubled(reports(volumeOf("a", "Current", &older), volumeOf("b", "Current", &current)), NotReady)),
		"another pod of the name": row("1 of 1: a - NotReported the pod runs, and the plugin doesn't report its volume, which may show the object",
			runs(reports(volumeOf("a", "Current", &current)), Pod{Name: "a", UID: "new", Volumes: []string{"settings"}, Started: true})),
		"a volume whose pod is gone": row("0 of 1: a 7 Outdated it shows another version", reports(volumeOf("a", "Current", &older))),
		"a hostile report speaks for its own node only": row("0 of 1:  - ObjectsUnknown the plugin doesn't know yet which objects the volume names; a 7 Outdated it shows another version",
			reports(status.Volume{}, status.Volume{Objects: []status.VolumeObject{{Object: &status.Object{Kind: "secret", Namespace: "shop", Name: "db"}, Shown: &current}}}),
			reports(volumeOf("a", "Current", &older))),
	} {
		t.Run(name, func(t *testing.T) {
			v := Evaluate(object, false, &current, &current, &Survey{Nodes: test.nodes})
			got := fmt.Sprintf("%d of %d", v.Showing, v.Volumes)
			if n := len(v.NotPublished); n > 0 {
				got += fmt.Sprintf(", %d wait", n)
			}
			if n := len(v.Withdrawn); n > 0 {
				got += fmt.Sprintf(", %d withdrawn", n)
			}
			if v.NotForPod > 0 {
				got += fmt.Sprintf(", %d for other pods", v.NotForPod)
			}
			for i, l := range v.Laggards {
				pod, shown := "-", "-"
				if l.Pod != nil {
					pod = l.Pod.Name
				}
				if l.Shown != nil {
					shown = l.Shown.ResourceVersion
				}
				got += fmt.Sprintf("%s %s %s %s %s", []string{":", ";"}[min(i, 1)], pod, shown, l.Reason, l.Message)
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			all := len(v.Laggards) == 0
			if none := test.want == "0 of 0"; v.None != none || v.Converged != (all && !none) || v.Nodes != len(test.nodes) {
				t.Errorf("converged: %v, none: %v, %d nodes", v.Converged, v.None, v.Nodes)
			}
			if v.AcceptNone(); v.Converged != all || v.None {
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
	const at = ", shown since 2026-01-01T00:00:00Z"
	for name, test := range map[string]struct {
		volumes []status.Volume
		want    string // how many are opened, and the laggards
	}{
		"all":          {[]status.Volume{volume("a", "yes", &current, 0), volume("b", "yes", &current, 0)}, "2"},
		"not one":      {[]status.Volume{volume("a", "yes", &current, 0), volume("b", "no", &current, 1, "p")}, "1; b NotOpened nobody has opened p" + at},
		"many":         {[]status.Volume{volume("a", "no", &current, 9, "p", "q")}, "0; a NotOpened nobody has opened p, q and 7 more files" + at},
		"missed":       {[]status.Volume{volume("a", "unknown", &current, 1, "p")}, "0; a OpenUnknown the plugin has not seen all opens of p" + at + ": replace the pod, or wait until it opens them again"},
		"unsupported":  {[]status.Volume{volume("a", "unsupported", &current, 0)}, "0; a OpenUnknown the node's plugin can't see whether files are opened"},
		"not reported": {[]status.Volume{volume("a", "", &current, 0)}, "0; a OpenUnknown the node's plugin can't see whether files are opened"},
		"older variables": {
			[]status.Volume{environment(volume("a", "no", &current, 1, "applied")), environment(volume("b", "yes", &current, 0)), environment(volume("c", "unknown", &current, 1, "want"))},
			"1; a NotOpened the containers run with older variables, or have not started, since 2026-01-01T00:00:00Z; " +
				"c OpenUnknown the plugin has not seen all opens of want" + at + ": replace the pod, or wait until it opens them again",
		},
		"another version was opened": {[]status.Volume{volume("a", "yes", &older, 0)}, "0; a Outdated it shows another version"},
	} {
		survey := &Survey{Nodes: []Node{reports(test.volumes...)}}
		v := Evaluate(object, true, &current, &current, survey)
		got := fmt.Sprint(*v.Opened)
		for _, l := range v.Laggards {
			got += fmt.Sprintf("; %s %s %s", l.Pod.Name, l.Reason, l.Message)
		}
		if got != test.want || v.Converged != (len(v.Laggards) == 0) {
			t.Errorf("%s: converged: %t\ngot  %s\nwant %s", name, v.Converged, got, test.want)
		}
		if v := Evaluate(object, false, &current, &current, survey); v.Opened != nil || name != "another version was opened" && !v.Converged {
			t.Errorf("%s: without --opened: %+v", name, v)
		}
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
