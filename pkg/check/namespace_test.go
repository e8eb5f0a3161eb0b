package check

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/internal/must"
)

const withVariables = "containers: [{name: c, envFrom: [{configMapRef: {name: o}}]}]"

func podOf(t *testing.T, name, spec string) corev1.Pod {
	t.Helper()
	p := corev1.Pod{Spec: *specOf(t, spec)}
	p.Name, p.Namespace, p.UID, p.ResourceVersion = name, "ns", "u-"+"1", "7"
	return p
}

// TestLabelRefused: a pod that is refused only with the label could not start. If it is refused also without it, nothing is known. Where no pod
// would change, the report says whether the component is installed.
func TestLabelRefused(t *testing.T) {
	const stays = "stays as it is written: pod web: variables\n"
	tooSmall, full := forbidden(errors.New("minimum memory usage per Container is 64Mi, but request is 32Mi")), forbidden(errors.New("exceeded quota: full"))
	for _, test := range []struct {
		name           string
		with, without  error // the answers to a pod with the label and without
		isIdle         bool  // no policy changes pods
		policy         error // the answer to the question about the policy
		has            Answer
		problem, text  string
		unknown, asked int
		err            string
	}{
		{name: "accepted", text: "1 would change, 0 could not start, 0 not known"},
		{name: "too small", with: tooSmall, problem: tooSmall.Error(), text: "could not start: pod web: " + tooSmall.Error() + "\n"},
		{name: "full", with: full, without: full, unknown: 1, asked: 1, text: "not known: pod web: also refused without the label: " + full.Error() + "\n"},
		{name: "a bad request", with: apierrors.NewBadRequest("odd"), problem: "odd", text: "could not start: pod web: odd\n"},
		{name: "no credential", with: apierrors.NewUnauthorized("who"), err: "create a pod like ns/web as a dry run: "},
		{name: "no right", with: forbidden(errors.New(`User "u" cannot create resource "pods" in API group ""`)), err: "create a pod like ns/web as a dry run: "},
		{name: "no namespace", with: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), err: "create a pod like ns/web as a dry run: "},
		{name: "busy", with: apierrors.NewTooManyRequests("later", 1), err: "create a pod like ns/web as a dry run: "},
		{name: "a webhook without an answer", with: apierrors.NewInternalError(errors.New("failed calling webhook")), err: "create a pod like ns/web as a dry run: "},
		{name: "busy without the label", with: tooSmall, without: apierrors.NewTooManyRequests("later", 1), err: "create a pod like ns/web as a dry run: "},
		{name: "no connection", with: errors.New("connection refused"), err: "create a pod like ns/web as a dry run: connection refused"},
		{name: "idle", isIdle: true, asked: 1, text: stays + "no pod would change, although MutatingAdmissionPolicy refvol-restart is installed\n"},
		{
			name: "no policy", isIdle: true, policy: apierrors.NewNotFound(schema.GroupResource{}, "x"), has: No, unknown: 1, asked: 1,
			text: stays + "not known: the component is not installed: there is no MutatingAdmissionPolicy refvol-restart\n",
		},
		{
			name: "a policy that may not be read", isIdle: true, policy: forbidden(errors.New("no")), has: Unknown, asked: 1,
			text: stays + "no pod would change: the component may not be installed, and you may not get MutatingAdmissionPolicy refvol-restart\n",
		},
		{name: "no answer about the policy", isIdle: true, policy: errors.New("busy"), err: "get MutatingAdmissionPolicy refvol-restart: busy"},
	} {
		api := &fakeAdmission{t: t, policy: test.policy, admit: func(p *corev1.Pod) error {
			switch {
			case test.isIdle:
				return nil
			case p.Labels[RestartLabel] == isOff:
				return test.without
			case test.with != nil:
				return test.with
			}
			return restart(notifyEnv)(p)
		}}
		report, err := newChecker(t, Options{Cluster: &fakeCluster{}}).Label(t.Context(), api.options(RestartLabel, podOf(t, "web", withVariables)))
		if err != nil {
			if test.err == "" || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: %v, want %s", test.name, err, test.err)
			}
			continue
		}
		text := written(t, report)
		if has := cmp.Or(test.has, Yes); report.Policy != has || test.isIdle && !strings.HasPrefix(text, test.text) {
			t.Errorf("%s: has the policy: %s, want %s:\n%s", test.name, report.Policy, has, text)
		}
		if got := strings.Join(report.Pods[0].Problems, ""); test.err != "" || got != test.problem || report.NotKnown() != test.unknown || len(api.asked) != test.asked || !strings.Contains(text, test.text) {
			t.Errorf("%s: problem %q, %d not known, asked for %q:\n%s", test.name, got, report.NotKnown(), api.asked, text)
		}
	}
}

// TestLabelWithoutPods: where there is no pod, nothing is said of the policy.
func TestLabelWithoutPods(t *testing.T) {
	report := must.Get(newChecker(t, Options{Cluster: &fakeCluster{}}).Label(t.Context(), (&fakeAdmission{t: t}).options(RestartLabel)))(t)
	if text := written(t, report); report.Policy != Yes || strings.Contains(text, "Policy") {
		t.Errorf("policy %s: %s", report.Policy, text)
	}
}

// TestAnew: the pod that is sent is the running one without its life and without what admission has added.
func TestAnew(t *testing.T) {
	p := podOf(t, "web", `{nodeName: n, priority: 7, priorityClassName: high, preemptionPolicy: Never, tolerations: [{key: k}],
initContainers: [{name: refvol-notify, image: i, volumeMounts: [{name: refvol-notify-state, mountPath: /run/refvol-notify}]}, {name: i}],
containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}, {name: kube-api-access-x, mountPath: /t}]}],
ephemeralContainers: [{name: debug}],
volumes: [{name: v, emptyDir: {}}, {name: kube-api-access-x, emptyDir: {}}, {name: refvol-notify-state, emptyDir: {}}, {name: refvol-notify-env, emptyDir: {}}]}`)
	p.Labels, p.Annotations, p.Finalizers = map[string]string{"app": "web"}, map[string]string{"a": "b"}, []string{"f"}
	p.OwnerReferences = []metav1.OwnerReference{{Name: "o"}}
	p.Status.Phase = corev1.PodRunning
	want := corev1.Pod{Spec: *specOf(t, `{priorityClassName: high, tolerations: [{key: k}], initContainers: [{name: i}],
containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, emptyDir: {}}]}`)}
	want.Namespace, want.GenerateName, want.Labels, want.Annotations = "ns", "web-", p.Labels, p.Annotations
	was := p.DeepCopy()
	if got := anew(&p); !reflect.DeepEqual(*got, want) || !reflect.DeepEqual(p, *was) {
		t.Errorf("got\n%+v\nwant\n%+v", *got, want)
	}
	// An author's sidecar stays.
	p.Spec.InitContainers[0].VolumeMounts[0].Name = "v"
	if got := anew(&p); len(got.Spec.InitContainers) != 2 || len(got.Spec.Volumes) != 3 {
		t.Errorf("got %+v", got.Spec)
	}
}

// TestLabelAlike: pods of one controller that differ only by what it sets for each are sent once, and are one line, but count all. Static pods and
// ended ones are not sent.
func TestLabelAlike(t *testing.T) {
	of := func(kind, name, spec string) corev1.Pod {
		p := podOf(t, name, spec)
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "o", UID: "u", Controller: new(true)}}
		return p
	}
	set := func(n int) corev1.Pod {
		return of("StatefulSet", fmt.Sprint("set-", n), fmt.Sprintf(`{hostname: set-%d, containers: [{name: c}], volumes: [{name: d, persistentVolumeClaim: {claimName: d-%d}}]}`, n, n))
	}
	daemon := func(node string) corev1.Pod {
		return of("DaemonSet", "daemon-"+node, `{containers: [{name: c}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:
{nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [`+node+`]}]}]}}}}`)
	}
	static, done, out := podOf(t, "static", withVariables), podOf(t, "done", withVariables), of("ReplicaSet", "out", withVariables)
	static.Annotations, done.Status.Phase, out.Labels = map[string]string{corev1.MirrorPodAnnotationKey: "x"}, corev1.PodFailed, map[string]string{RestartLabel: isOff}
	api := &fakeAdmission{t: t, admit: restart(notifyEnv)}
	report := labelled(t, nil, api.options(RestartLabel, set(0), set(1), daemon("a"), daemon("b"), static, done,
		of("ReplicaSet", "web-1", withVariables), of("ReplicaSet", "web-2", withVariables), out, podOf(t, "a", withVariables), podOf(t, "b", withVariables)))
	const table, counted = `POD       OWNER          PODS  CHANGES
set-0     StatefulSet/o  2     refvol-notify
daemon-a  DaemonSet/o    2     refvol-notify
web-1     ReplicaSet/o   2     refvol-notify
a         -              1     refvol-notify
b         -              1     refvol-notify

`, "9 pods in namespace ns: 8 would change, 0 could not start, 0 not known\n"
	if text := written(t, report); !strings.HasPrefix(text, table) || !strings.HasSuffix(text, counted) || len(api.sent) != 6 {
		t.Fatalf("%d sent, got\n%s\nwant\n%s...%s", len(api.sent), text, table, counted)
	}
	// A pod that is left out by its label keeps the label.
	if got := api.sent[3].Labels[RestartLabel]; got != isOff || api.sent[0].Labels[RestartLabel] != isOn {
		t.Errorf("sent with the label %q", got)
	}
	api.admit = func(p *corev1.Pod) error {
		if p.Labels[RestartLabel] == isOn {
			return apierrors.NewBadRequest("odd")
		}
		return nil
	}
	report = labelled(t, nil, api.options(RestartLabel,
		of("ReplicaSet", "web-1", withVariables), of("ReplicaSet", "web-2", withVariables), podOf(t, "a", withVariables), done))
	const refused = `could not start: pod web-1: odd
could not start: pod a: odd
3 pods in namespace ns: 0 would change, 3 could not start, 0 not known
`
	if text := written(t, report); text != refused || report.CannotStart() != 3 {
		t.Errorf("%d can't start, got\n%s\nwant\n%s", report.CannotStart(), text, refused)
	}
}

// TestWithoutPlace: the place of an init container is no difference, because a sidecar that is added moves the others.
func TestWithoutPlace(t *testing.T) {
	a, b := "spec.initContainers[0].volumeMounts[1]: no directory", "spec.initContainers[12].volumeMounts[1]: no directory"
	if withoutPlace(a) != withoutPlace(b) || withoutPlace(a) == withoutPlace("spec.containers[0].volumeMounts[1]: no directory") {
		t.Errorf("%s, %s", withoutPlace(a), withoutPlace(b))
	}
}

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
		report := labelled(t, nil, api.options(RestartLabel, podOf(t, "web", test.spec)))
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
		report := labelled(t, nil, opts)
		text := written(t, report)
		if report.CannotStart() != test.problems || !strings.Contains(text, test.text) {
			t.Errorf("%s: %d could not start:\n%s", test.name, report.CannotStart(), text)
		}
	}
}
