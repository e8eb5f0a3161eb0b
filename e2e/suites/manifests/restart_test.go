package manifests

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

const (
	notify      = "refvol-notify"
	notifyState = "refvol-notify-state"
	notifyEnv   = "refvol-notify-env"
)

func wantAdded(t *testing.T, pod *corev1.Pod, want *added) {
	t.Helper()
	if len(pod.Spec.InitContainers) == 0 || pod.Spec.InitContainers[0].Name != notify {
		t.Fatalf("the first init container is not the sidecar:\n%s", outline(pod))
	}
	c := &pod.Spec.InitContainers[0]
	args := []string{"--exit-code=42", "--state=/run/refvol-notify"}
	wantMounts := []string{notifyState + ":/run/refvol-notify"}
	if want.patience != "" {
		args = append(args, "--env=/run/refvol-notify-env", "--env-prefix=refvol_", "--patience="+want.patience)
		wantMounts = append(wantMounts, notifyEnv+":/run/refvol-notify-env")
	}
	for _, name := range want.watched {
		args, wantMounts = append(args, "--dir=/volumes/"+name), append(wantMounts, name+":/volumes/"+name)
	}
	got := []any{c.Args, textsOf(c.Env), textsOfObjects(c.EnvFrom), mountsOf(c), cpuOf(c), c.SecurityContext.RunAsUser, len(c.Ports)}
	wanted := []any{args, want.env, want.envFrom, wantMounts, want.cpu, want.user, 0}
	if !reflect.DeepEqual(got, wanted) {
		t.Errorf("the sidecar has\n%s\nwant\n%s", asYAML(got), asYAML(wanted))
	}
	names := map[string]bool{}
	for i := range c.Env {
		names[c.Env[i].Name] = true
	}
	for _, from := range c.EnvFrom {
		names[from.Prefix] = true
	}
	for name := range names {
		if !strings.HasPrefix(name, "refvol_") {
			t.Errorf("%s does not begin with refvol_", name)
		}
	}
	if len(names) != len(c.Env)+len(c.EnvFrom) {
		t.Errorf("%d variables and %d objects have %d names", len(c.Env), len(c.EnvFrom), len(names))
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Name == notifyEnv || slices.Contains(want.spreads, v.Name) {
			if got, ok := v.CSI.VolumeAttributes["spread"]; got != want.spread || ok != (want.spread != "") {
				t.Errorf("volume %s has the spread %q (%t), want %q", v.Name, got, ok, want.spread)
			}
		}
	}
	left := strings.Split(pod.Annotations[excludes], ",")
	if got := left[len(left)-1] == notifyEnv; got != (want.patience != "") {
		t.Errorf("backups leave out %q", left)
	}
}

func withoutSidecar(pod *corev1.Pod, added *added) *corev1.Pod {
	pod = pod.DeepCopy()
	if pod.Spec.InitContainers = pod.Spec.InitContainers[1:]; len(pod.Spec.InitContainers) == 0 {
		pod.Spec.InitContainers = nil
	}
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == notifyState || v.Name == notifyEnv })
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; slices.Contains(added.spreads, v.Name) {
			delete(v.CSI.VolumeAttributes, "spread")
		}
	}
	switch before := strings.TrimSuffix(pod.Annotations[excludes], notifyEnv); {
	case added.patience == "":
	case before != "":
		pod.Annotations[excludes] = strings.TrimSuffix(before, ",")
	default:
		if delete(pod.Annotations, excludes); len(pod.Annotations) == 0 {
			pod.Annotations = nil
		}
	}
	return pod
}

func mountsOf(c *corev1.Container) (all []string) {
	for _, m := range c.VolumeMounts {
		if !strings.HasPrefix(m.Name, "kube-api-access-") {
			all = append(all, m.Name+":"+m.MountPath)
		}
	}
	return all
}

func cpuOf(c *corev1.Container) string {
	if len(c.Resources.Requests)+len(c.Resources.Limits) == 0 {
		return ""
	}
	return c.Resources.Requests.Cpu().String() + "/" + c.Resources.Limits.Cpu().String()
}

// bothInAnyOrder: whichever policy comes first, and however often, the pod becomes the same.
func (s labels) bothInAnyOrder(t *testing.T) {
	pod := func(labels ...string) *corev1.Pod {
		pod := mounting([]corev1.Volume{ofConfigMap("a"), ofSecret("b"), showing("own", attributes{"configMap": "app"})}, "a:/a", "b:/b", "own:/own")
		pod.Spec.AutomountServiceAccountToken = new(false)
		pod.Spec.Containers[0].Env = []corev1.EnvVar{secretKey("db", "password")}
		return withLabels(pod, labels...)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"with variables":    func(*corev1.Pod) {},
		"without variables": func(pod *corev1.Pod) { pod.Spec.Containers[0].Env = nil },
		"native volumes alone": func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Env, c.VolumeMounts, pod.Spec.Volumes = nil, c.VolumeMounts[:2], pod.Spec.Volumes[:2]
		},
	} {
		t.Run(name, func(t *testing.T) {
			again := func(pod *corev1.Pod) *corev1.Pod {
				return must.Get(createdIn(t.Context(), s.plain, pod))(t)
			}
			want := again(changed(pod(restartLabel, liveLabel), change))
			for _, mount := range []string{"refvol-a:/volumes/refvol-a", "refvol-b:/volumes/refvol-b"} {
				if !slices.Contains(mountsOf(&want.Spec.InitContainers[0]), mount) {
					t.Errorf("the sidecar has no mount %s:\n%s", mount, outline(want))
				}
			}
			for i := range want.Spec.Volumes {
				if v := &want.Spec.Volumes[i]; v.CSI != nil && v.CSI.VolumeAttributes["spread"] != "1m" {
					t.Errorf("volume %s has no spread", v.Name)
				}
			}
			for first, labels := range map[string][]string{"restart": {restartLabel}, "live": {liveLabel}} {
				got := again(withLabels(again(changed(pod(labels...), change)), restartLabel, liveLabel))
				wantEqual(t, inOrder(got), inOrder(want))
				wantEqual(t, inOrder(again(got.DeepCopy())), inOrder(want))
				// A container that comes later mounts the volume that there is.
				got.Spec.Containers = append(got.Spec.Containers, container("late", "a:/late"))
				if late := mountsOf(&again(got).Spec.Containers[1]); !slices.Equal(late, []string{"refvol-a:/late"}) {
					t.Errorf("a later container mounts %q", late)
				}
				if t.Failed() {
					t.Fatalf("first %s", first)
				}
			}
		})
	}
}

// inOrder sorts the sidecar's directories, and the volumes that backups leave out, whose order says nothing.
func inOrder(pod *corev1.Pod) *corev1.Pod {
	if names, ok := pod.Annotations[excludes]; ok {
		pod.Annotations[excludes] = strings.Join(slices.Sorted(strings.SplitSeq(names, ",")), ",")
	}
	c := &pod.Spec.InitContainers[0]
	slices.Sort(c.Args)
	slices.SortFunc(c.VolumeMounts, func(a, b corev1.VolumeMount) int { return cmp.Compare(a.Name, b.Name) })
	return pod
}

// underPodSecurity: what a level takes without the sidecar it takes with it.
func (s labels) underPodSecurity(t *testing.T) {
	for _, level := range []string{"baseline", "restricted"} {
		namespace := ownNamespace(t, map[string]string{restartLabel: "true", "pod-security.kubernetes.io/enforce": level})
		pod := merged(mounting([]corev1.Volume{showing("a", attributes{"configMap": "app"})}, "a:/a"), `spec: {containers: [{name: c,
			env: [{name: S, valueFrom: {secretKeyRef: {name: db, key: password}}}], securityContext: {runAsNonRoot: true,
			allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}}]}`)
		if got, err := createdIn(t.Context(), namespace, pod); err != nil || len(got.Spec.InitContainers) != 1 {
			t.Errorf("%s: %v, %+v, want a sidecar", level, err, got)
		}
		pod.Spec.HostNetwork = true
		_, err := createdIn(t.Context(), namespace, pod)
		wantRefusal(t, err, "violates PodSecurity")
	}
}

// withLimits: pods of a namespace with a LimitRange or a quota, as tenants have, are still created with the sidecar. checkRestart has a limit
// that refuses it.
func (s labels) withLimits(t *testing.T) {
	for _, test := range []struct{ kind, spec string }{
		{"LimitRange", "{limits: [{type: Container, min: {cpu: 10m, memory: 16Mi}}]}"},
		{"LimitRange", "{limits: [{type: Container, maxLimitRequestRatio: {cpu: 10, memory: 10}}]}"},
		{"ResourceQuota", "{hard: {requests.cpu: 2, requests.memory: 1Gi, limits.cpu: 4, limits.memory: 2Gi}}"},
	} {
		namespace := ownNamespace(t, map[string]string{restartLabel: "true"})
		limit(t, namespace, test.kind, test.spec)
		if _, err := createdIn(t.Context(), namespace, limitedApp()); err != nil {
			t.Fatalf("%s: %v", test.spec, err)
		}
	}
}

func limit(t *testing.T, namespace, kind, spec string) {
	t.Helper()
	manifest := fmt.Sprintf("apiVersion: v1\nkind: %s\nmetadata: {name: limits}\nspec: %s\n", kind, spec)
	must.Get(shared.kubectlWith(t.Context(), []byte(manifest), "create", "--namespace="+namespace, "--filename=-"))(t)
}

func limitedApp() *corev1.Pod {
	return merged(podWith("app"), `spec: {containers: [{name: c, envFrom: [{configMapRef: {name: settings}}],
		resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 500m, memory: 128Mi}}}]}`)
}

// checkRestart: a namespace in which a pod would be refused with the label is found before it has the label.
func (s labels) checkRestart(t *testing.T) {
	namespace := ownNamespace(t, nil)
	pods := shared.Client().CoreV1().Pods(namespace)
	must.Get(pods.Create(t.Context(), limitedApp(), metav1.CreateOptions{}))(t)
	says := func(want string, wantStatus int) error {
		args := []string{"check", "--label=restart", "--namespace=" + namespace, "--kubeconfig=" + shared.Kubeconfig()}
		stdout, stderr, status := harness.Run(t, shared.refvol, args...)
		if status != wantStatus || !strings.Contains(stdout+stderr, want) {
			return fmt.Errorf("status %d\n%s%s", status, stdout, stderr)
		}
		return nil
	}
	if err := says("1 would change, 0 could not start, 0 not known\n", 0); err != nil {
		t.Error(err)
	}
	limit(t, namespace, "LimitRange", "{limits: [{type: Container, min: {memory: 64Mi}}]}")
	// The API server learns of limits a moment later.
	harness.Eventually(t, soon, func() error { return says("minimum memory usage per Container is 64Mi, but request is 32Mi\n", 1) })
	if left, err := pods.List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) != 1 { // check creates nothing
		t.Errorf("%v, %d pods", err, len(left.Items))
	}
}

// restartValues: the first variables of the policy are what the chart's values and kustomize replace.
func (s labels) restartValues(t *testing.T) {
	policies := shared.Client().AdmissionregistrationV1().MutatingAdmissionPolicies()
	policy := must.Get(policies.Get(t.Context(), "refvol-restart", metav1.GetOptions{}))(t)
	values := map[string]string{
		"image": "'example.com/notify:v9'", "pullPolicy": "'Always'", "pullSecrets": "['one', 'two']", "user": "1234", "port": "9811",
		"usualResources": `{"requests": {"memory": "64Mi"}}`,
	}
	for i := range policy.Spec.Variables {
		v := &policy.Spec.Variables[i]
		v.Expression = cmp.Or(values[v.Name], v.Expression)
	}
	must.Get(policies.Update(t.Context(), policy, metav1.UpdateOptions{}))(t)
	create := func(patch string) *corev1.Pod {
		return must.Get(createdIn(t.Context(), s.restart, merged(withEnv(secretKey("db", "password")), patch)))(t)
	}
	const own = "spec: {imagePullSecrets: [{name: own}, {name: two}]}"
	harness.Eventually(t, soon, func() error {
		if image := create(own).Spec.InitContainers[0].Image; image != "example.com/notify:v9" {
			return errors.New("the old image is in force: " + image)
		}
		return nil
	})
	for name, test := range map[string]struct{ patch, secrets string }{
		"":                                 {"", "[{one} {two}]"},
		"of its own":                       {own, "[{own} {two} {one}]"},
		"no port: the network of the node": {"spec: {hostNetwork: true}", "[{one} {two}]"},
		"no port: it is declared":          {"spec: {containers: [{name: c, ports: [{containerPort: 80}, {containerPort: 9811}]}]}", "[{one} {two}]"},
	} {
		spec := create(test.patch).Spec
		c := spec.InitContainers[0]
		if c.ImagePullPolicy != corev1.PullAlways || *c.SecurityContext.RunAsUser != 1234 || c.Resources.Requests.Memory().String() != "64Mi" ||
			len(c.Resources.Limits) > 0 || fmt.Sprint(spec.ImagePullSecrets) != test.secrets {
			t.Errorf("%q: pull secrets %v, the sidecar is\n%s", name, spec.ImagePullSecrets, asYAML(c))
		}
		serves := slices.Contains(c.Args, "--http=:9811") && len(c.Ports) == 1 && c.Ports[0].Name == notify && c.Ports[0].ContainerPort == 9811
		if serves == strings.HasPrefix(name, "no port") {
			t.Errorf("%q: the sidecar has the arguments %q and the ports %v", name, c.Args, c.Ports)
		}
	}
}
