package manifests

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	restartLabel = "refvol.dev/restart"
	notify       = "refvol-notify"
	notifyState  = "refvol-notify-state"
	notifyEnv    = "refvol-notify-env"
)

// restartSuite has the namespaces of one test: one with the label, and one without it.
type restartSuite struct{ restart, plain string }

func newRestartSuite(t *testing.T) restartSuite {
	t.Helper()
	return restartSuite{restart: ownNamespace(t, map[string]string{restartLabel: "true"}), plain: ownNamespace(t, nil)}
}

// enforce installs the component until the end of the test, and waits until both bindings are in force, and in the end until
// none is.
func (s restartSuite) enforce(t *testing.T, others ...string) {
	t.Helper()
	awaitRestart := inForce(t, restartLabel, s.restart, s.plain, func() *corev1.Pod { return withEnv(secretKey("db", "password")) },
		func(pod *corev1.Pod) bool { return len(pod.Spec.InitContainers) > 0 })
	install(t, append(others, "restart")...)
	awaitRestart()
}

// enforceWithLive is enforce, also for the component live: the API server learns of each policy by itself.
func (s restartSuite) enforceWithLive(t *testing.T) {
	t.Helper()
	awaitLive := inForce(t, liveLabel, s.plain, s.plain, liveAtOnce, isLive)
	s.enforce(t, "live")
	awaitLive()
}

func (c restartCase) where(s restartSuite) string { return cmp.Or(c.namespace, s.restart) }

// TestRestart has the API server make pods without the component and with it: what differs is what each case says.
func TestRestart(t *testing.T) {
	s := newRestartSuite(t)
	cases := restartCases(s)
	before, accountIn := map[string]*corev1.Pod{}, accounts(t, s.restart)
	for _, test := range cases {
		test.pod.Spec.ServiceAccountName = cmp.Or(accountIn[test.namespace], test.pod.Spec.ServiceAccountName)
		pod, err := createdIn(t.Context(), test.where(s), test.pod.DeepCopy())
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		before[test.name] = pod
	}
	s.enforce(t)
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			got, err := createdIn(t.Context(), test.where(s), test.pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if test.adds == nil {
				wantEqual(t, got, before[test.name])
				return
			}
			wantAdded(t, got, test.adds)
			was := before[test.name]
			if was.Status.QOSClass == corev1.PodQOSGuaranteed && got.Status.QOSClass != was.Status.QOSClass {
				t.Errorf("the pod's class became %s", got.Status.QOSClass)
			}
			got.Status.QOSClass = was.Status.QOSClass // another one may become Burstable
			wantEqual(t, withoutSidecar(got, test.adds), was)
		})
	}
}

// accounts makes an account in kube-system, where no controller makes one. It returns the accounts of pods by namespace, where that is not the
// default one.
func accounts(t *testing.T, name string) map[string]string {
	t.Helper()
	accounts := shared.Client().CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := accounts.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return map[string]string{metav1.NamespaceSystem: name, pluginNamespace: pluginAccount}
}

// wantAdded compares the sidecar and its volumes with what they should be.
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
	wantSpreads(t, pod, want)
	left := strings.Split(pod.Annotations[excludes], ",")
	if got := left[len(left)-1] == notifyEnv; got != (want.patience != "") {
		t.Errorf("backups leave out %q", left)
	}
}

// wantSpreads wants the spread of the volumes that the policy adds and changes.
func wantSpreads(t *testing.T, pod *corev1.Pod, want *added) {
	t.Helper()
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Name == notifyEnv || slices.Contains(want.spreads, v.Name) {
			if got, ok := v.CSI.VolumeAttributes["spread"]; got != want.spread || ok != (want.spread != "") {
				t.Errorf("volume %s has the spread %q (%t), want %q", v.Name, got, ok, want.spread)
			}
		}
	}
}

// withoutSidecar takes out what the policy should have added.
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

// cpuOf is the request and the limit of a container.
func cpuOf(c *corev1.Container) string {
	if len(c.Resources.Requests)+len(c.Resources.Limits) == 0 {
		return ""
	}
	return c.Resources.Requests.Cpu().String() + "/" + c.Resources.Limits.Cpu().String()
}

func wantEqual(t *testing.T, got, want *corev1.Pod) {
	t.Helper()
	for _, pod := range []*corev1.Pod{got, want} {
		slices.SortFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return cmp.Compare(a.Name, b.Name) })
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the pod became\n%s\nwant\n%s", outline(got), outline(want))
	}
}

func asYAML(value any) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text[:min(len(text), 3<<10)])
}

// TestRestartAndLive: whichever policy comes first, and however often, the pod becomes the same.
func TestRestartAndLive(t *testing.T) {
	s := newRestartSuite(t)
	s.enforceWithLive(t)
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
				got, err := createdIn(t.Context(), s.plain, pod)
				if err != nil {
					t.Fatal(err)
				}
				return got
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

func withLabels(pod *corev1.Pod, names ...string) *corev1.Pod {
	pod.Labels = map[string]string{}
	for _, name := range names {
		pod.Labels[name] = "true"
	}
	return pod
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

// TestRestartUnderPodSecurity: what a level takes without the sidecar it takes with it.
func TestRestartUnderPodSecurity(t *testing.T) {
	for _, level := range []string{"baseline", "restricted"} {
		s := restartSuite{plain: ownNamespace(t, nil), restart: ownNamespace(t, map[string]string{
			restartLabel: "true", "pod-security.kubernetes.io/enforce": level,
		})}
		t.Run(level, func(t *testing.T) {
			s.enforceIn(t)
			pod := mounting([]corev1.Volume{showing("a", attributes{"configMap": "app"})}, "a:/a")
			pod.Spec.Containers[0].Env = []corev1.EnvVar{secretKey("db", "password")}
			pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
				RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
			got, err := createdIn(t.Context(), s.restart, pod)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Spec.InitContainers) != 1 {
				t.Error("there is no sidecar")
			}
			pod.Spec.HostNetwork = true
			_, err = createdIn(t.Context(), s.restart, pod)
			wantRefusal(t, err, "violates PodSecurity")
		})
	}
}

// enforceIn is enforce where only the binding of pods can be asked.
func (s restartSuite) enforceIn(t *testing.T) {
	t.Helper()
	restartSuite{restart: ownNamespace(t, map[string]string{restartLabel: "true"}), plain: s.plain}.enforce(t)
}
