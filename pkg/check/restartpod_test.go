package check

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const ownVolumes = `volumes: [{name: own, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {configMap: o}}},
{name: other, csi: {driver: csi.example.com}}, {name: pinned, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {configMap: o, updatePolicy: Pinned}}},
{name: spare, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {configMap: o}}}, {name: refvol-notify-env, emptyDir: {}}, {name: refvol-notify-state, emptyDir: {}}]`

// TestLabelRestart: a pod gets the sidecar, or what it uses is not followed.
func TestLabelRestart(t *testing.T) {
	const mounts = "containers: [{name: c, volumeMounts: [{name: own, mountPath: /o}, {name: other, mountPath: /x}, {name: pinned, mountPath: /p}]}]\n" + ownVolumes
	for _, test := range []struct {
		name, spec string
		follows    []string
		sidecar    bool
		want       string
	}{
		{"variables", withVariables, []string{notifyEnv}, true, "[refvol-notify] []"},
		{"too many variables", withVariables, nil, true, "[refvol-notify] [variables]"},
		{"a volume", mounts, []string{"own"}, true, "[refvol-notify] []"},
		{"a volume that is not followed", mounts, nil, false, "[] [volume own]"},
		{"one variable of a Secret", "containers: [{name: c, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]", nil, false, "[] [variables]"},
		{"a variable of the pod", "containers: [{name: c, env: [{name: A, value: b}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]", nil, false, "[] []"},
		{"an author's sidecar", "initContainers: [{name: refvol-notify, image: i}]\n" + withVariables, nil, false, "[] []"},
		{"an author's sidecar of another name", "initContainers: [{name: n, image: 'example.com/refvol-notify:v1'}]\n" + withVariables, nil, false, "[] []"},
	} {
		api := &fakeAdmission{t: t}
		if test.sidecar {
			api.admit = restart(test.follows...)
		}
		report, err := newLabelChecker(t, nil).Label(t.Context(), api.options(RestartLabel, podOf(t, "web", test.spec)))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(report.Pods[0].Changed, report.Pods[0].Stays); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

// TestLabelNodes: nodes that are too old are a warning, and a problem if a pod that gets the sidecar can run on no other.
func TestLabelNodes(t *testing.T) {
	node := func(name, version, pool string) Node { return Node{name, version, map[string]string{"pool": pool}} }
	fresh, old := node("fresh", "v1.36.0-gke.1", "a"), node("old", "v1.35.9", "b")
	var many []Node
	for i := range 12 {
		many = append(many, node(fmt.Sprint("n", i), "v1.9.1+k3s1", "b"))
	}
	for _, test := range []struct {
		name, spec string
		nodes      []Node
		unread     bool
		problems   int
		text       string
	}{
		{name: "none", spec: withVariables},
		{name: "new", spec: withVariables, nodes: []Node{fresh, node("next", "v2.0.0", "a"), node("odd", "devel", "a")}, text: "\n\n1 pod in namespace"},
		{name: "not known", spec: withVariables, unread: true, text: "nodes not known: you may not list nodes, and on those older than 1.36 pods with the sidecar stay Pending\n"},
		{name: "some old", spec: withVariables, nodes: []Node{old, fresh}, text: "warning: no pod with the sidecar can run on nodes older than 1.36: old (v1.35.9)\n"},
		{name: "all old", spec: withVariables, nodes: []Node{old}, problems: 1, text: "could not start: pod web: no node that it may run on has a kubelet of 1.36 or newer, so it would stay Pending\n"},
		{name: "selects old", spec: "nodeSelector: {pool: b}\n" + withVariables, nodes: []Node{old, fresh}, problems: 1},
		{name: "selects new", spec: "nodeSelector: {pool: a}\n" + withVariables, nodes: []Node{old, fresh}},
		{name: "selects none", spec: "nodeSelector: {pool: c}\n" + withVariables, nodes: []Node{old}},
		{name: "many", spec: withVariables, nodes: many, problems: 1, text: "n9 (v1.9.1+k3s1), and 2 more\n"},
		{name: "no sidecar", spec: "containers: [{name: c}]", nodes: []Node{old}},
	} {
		api := &fakeAdmission{t: t, admit: func(p *corev1.Pod) error {
			if hasVariables(p.Spec.Containers[0]) {
				return restart(notifyEnv)(p)
			}
			return nil
		}}
		opts := api.options(RestartLabel, podOf(t, "web", test.spec))
		opts.Nodes, opts.NodesUnread = test.nodes, test.unread
		report, err := newLabelChecker(t, nil).Label(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := report.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if report.CannotStart() != test.problems || !strings.Contains(text.String(), test.text) {
			t.Errorf("%s: %d could not start:\n%s", test.name, report.CannotStart(), text.String())
		}
	}
}
