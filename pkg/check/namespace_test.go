package check

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const withVariables = "containers: [{name: c, envFrom: [{configMapRef: {name: o}}]}]"

func podOf(t *testing.T, name, spec string) corev1.Pod {
	t.Helper()
	p := corev1.Pod{Spec: *specOf(t, spec)}
	p.Name, p.Namespace, p.UID, p.ResourceVersion = name, "ns", "u-"+"1", "7"
	return p
}

// TestLabelRefused: a pod that is refused only with the label could not start. If it is refused also without it, nothing is known.
func TestLabelRefused(t *testing.T) {
	tooSmall, full := forbidden(errors.New("minimum memory usage per Container is 64Mi, but request is 32Mi")), forbidden(errors.New("exceeded quota: full"))
	for _, test := range []struct {
		name           string
		with, without  error
		policy         error
		problem, text  string
		unknown, asked int
		err            string
	}{
		{name: "accepted", text: "1 would change, 0 could not start, 0 not known"},
		{name: "too small", with: tooSmall, problem: tooSmall.Error(), text: "could not start: pod web: " + tooSmall.Error() + "\n"},
		{name: "full", with: full, without: full, unknown: 1, asked: 1, text: "not known: pod web: also refused without the label: " + full.Error() + "\n"},
		{name: "no right", with: forbidden(errors.New(`User "u" cannot create resource "pods" in API group ""`)), err: "create a pod like ns/web as a dry run: "},
		{name: "no namespace", with: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), err: "create a pod like ns/web as a dry run: "},
		{name: "busy", with: apierrors.NewTooManyRequests("later", 1), err: "create a pod like ns/web as a dry run: "},
		{name: "a webhook without an answer", with: apierrors.NewInternalError(errors.New("failed calling webhook")), err: "create a pod like ns/web as a dry run: "},
		{name: "busy without the label", with: tooSmall, without: apierrors.NewTooManyRequests("later", 1), err: "create a pod like ns/web as a dry run: "},
		{name: "no connection", with: errors.New("connection refused"), err: "create a pod like ns/web as a dry run: connection refused"},
	} {
		api := &fakeAdmission{t: t, policy: test.policy, admit: func(p *corev1.Pod) error {
			if p.Labels[RestartLabel] == isOff {
				return test.without
			}
			return errors.Join(test.with, restart(notifyEnv)(p))
		}}
		if test.with != nil {
			api.admit = func(p *corev1.Pod) error {
				if p.Labels[RestartLabel] == isOff {
					return test.without
				}
				return test.with
			}
		}
		report, err := newLabelChecker(t, nil).Label(t.Context(), api.options(RestartLabel, podOf(t, "web", withVariables)))
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: %v, want %s", test.name, err, test.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := report.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(report.Pods[0].Problems, ""); got != test.problem || report.NotKnown() != test.unknown || len(api.asked) != test.asked || !strings.Contains(text.String(), test.text) {
			t.Errorf("%s: problem %q, %d not known, asked for %q:\n%s", test.name, got, report.NotKnown(), api.asked, text.String())
		}
	}
}

// TestIsRefusal: other answers of admission count as well.
func TestIsRefusal(t *testing.T) {
	for code, want := range map[int32]bool{
		http.StatusBadRequest: true, http.StatusUnprocessableEntity: true, http.StatusForbidden: true, http.StatusUnauthorized: false, http.StatusServiceUnavailable: false,
	} {
		if got := isRefusal(fmt.Errorf("try: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: code}})); got != want {
			t.Errorf("%d: %t", code, got)
		}
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

// TestLabelAlike: pods of one controller that differ only by what it sets for each are sent once. Static pods and ended ones are not sent.
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
	report, err := newLabelChecker(t, nil).Label(t.Context(), api.options(RestartLabel, set(0), set(1), daemon("a"), daemon("b"), static, done,
		of("ReplicaSet", "web-1", withVariables), of("ReplicaSet", "web-2", withVariables), out, podOf(t, "a", withVariables), podOf(t, "b", withVariables)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range report.Pods {
		got = append(got, fmt.Sprintf("%s %s %d %v", p.Name, p.Owner, p.Replicas, p.Changed))
	}
	want := []string{
		"set-0 StatefulSet/o 2 [refvol-notify]", "daemon-a DaemonSet/o 2 [refvol-notify]", "web-1 ReplicaSet/o 2 [refvol-notify]", "out ReplicaSet/o 1 []",
		"a  1 [refvol-notify]", "b  1 [refvol-notify]",
	}
	if !slices.Equal(got, want) || len(api.sent) != len(want) {
		t.Errorf("%d sent, got\n%q\nwant\n%q", len(api.sent), got, want)
	}
	// A pod that is left out by its label keeps the label.
	if got := api.sent[3].Labels[RestartLabel]; got != isOff || api.sent[0].Labels[RestartLabel] != isOn {
		t.Errorf("sent with the label %q", got)
	}
}

// TestLabelPolicy: where no pod would change, the report says whether the component is installed.
func TestLabelPolicy(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer error
		want   string
		policy Answer
		err    string
	}{
		{"there", nil, "no pod would change, although MutatingAdmissionPolicy refvol-restart is installed\n", Yes, ""},
		{"not there", apierrors.NewNotFound(schema.GroupResource{}, "x"), "not known: the component is not installed: there is no MutatingAdmissionPolicy refvol-restart\n", No, ""},
		{"no right", forbidden(errors.New("no")), "no pod would change: the component may not be installed, and you may not get MutatingAdmissionPolicy refvol-restart\n", Unknown, ""},
		{"no answer", errors.New("busy"), "", "", "get MutatingAdmissionPolicy refvol-restart: busy"},
	} {
		api := &fakeAdmission{t: t, policy: test.answer}
		report, err := newLabelChecker(t, nil).Label(t.Context(), api.options(RestartLabel, podOf(t, "web", withVariables)))
		if test.err != "" {
			if err == nil || err.Error() != test.err {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := report.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if want := "stays as it is written: pod web: variables\n" + test.want; !strings.HasPrefix(text.String(), want) || report.Policy != test.policy {
			t.Errorf("%s: %s, got\n%s\nwant\n%s", test.name, report.Policy, text.String(), want)
		}
	}
}

// TestWithoutPlace: the place of an init container is no difference, because a sidecar that is added moves the others.
func TestWithoutPlace(t *testing.T) {
	a, b := "spec.initContainers[0].volumeMounts[1]: no directory", "spec.initContainers[12].volumeMounts[1]: no directory"
	if withoutPlace(a) != withoutPlace(b) || withoutPlace(a) == withoutPlace("spec.containers[0].volumeMounts[1]: no directory") {
		t.Errorf("%s, %s", withoutPlace(a), withoutPlace(b))
	}
}
