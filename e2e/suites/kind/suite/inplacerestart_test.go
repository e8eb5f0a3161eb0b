package suite

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/internal/must"
)

const restartLabel = "refvol.dev/restart"

// restartTimeout is for a change, the settling, the restart, and the first of the back-offs.
const restartTimeout = 6 * time.Minute

// A labelled pod restarts in place with new values of a ConfigMap by env, by a file and by subPaths of two kinds of volumes, and of a
// Secret by envFrom. A pod without the label keeps its variables.
func testRestartInPlace(t *testing.T) {
	n := newNamespace(t)
	n.needsPolicies()
	n.setConfigMap("settings", object{"mode": "slow"})
	n.setSecret("db", object{"db.password": "before", "db.revoked": "revoked"})
	with, without := n.start(withVariables("with", "true")), n.start(withVariables("without", ""))
	if c := with.Spec.InitContainers; len(c) != 1 || c[0].Name != "refvol-notify" {
		t.Fatalf("the labelled pod has the init containers %+v", c)
	}
	if !slices.ContainsFunc(with.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }) {
		t.Error("the sidecar has no emptyDir, for which kubectl drain needs --delete-emptydir-data")
	}
	if c := without.Spec.InitContainers; len(c) != 0 {
		t.Fatalf("the pod without the label has the init containers %+v", c)
	}
	old := map[string]string{"MODE": "slow", "db.password": "before", "db.revoked": "revoked"}
	for _, p := range []*pod{with, without} {
		must.Do(t, p.hasVariables(t.Context(), old))
	}
	ip, runs := with.Status.PodIP, with.restarts(t)

	n.setConfigMap("settings", object{"mode": "fast"})
	n.setSecret("db", object{"db.password": "after", "db.revoked": "revoked"})
	eventually(t, restartTimeout, "new variables", func(ctx context.Context) error {
		return with.hasVariables(ctx, map[string]string{"MODE": "fast", "db.password": "after"})
	})
	with.awaitReady()
	for _, file := range []string{"files/mode", "native-path", "path"} {
		if got := with.probe("read", mountDir+file); got != "fast" {
			t.Errorf("%s is %q", file, got)
		}
	}
	if with.Status.PodIP != ip || with.restarts(t) <= runs {
		t.Errorf("the pod has the address %s and %d restarts, before %s and %d", with.Status.PodIP, with.restarts(t), ip, runs)
	}
	without.awaitReady()
	if err := without.hasVariables(t.Context(), old); err != nil || without.restarts(t) != 0 {
		t.Errorf("the pod without the label: %v, %d restarts", err, without.restarts(t))
	}
	n.setSecret("db", object{"db.password": "after"}) // a password is revoked
	eventually(t, restartTimeout, "no container has the revoked variable", func(ctx context.Context) error {
		return with.hasVariables(ctx, map[string]string{"MODE": "fast", "db.password": "after", "db.revoked": ""})
	})
	without.probe("read", mountDir+"files/mode") // else nobody would open it there
	// The receipt of the variables says that the containers have them.
	for _, object := range []string{"configmap/settings", "secret/db"} {
		stdout, stderr, status := kubectlRefvol(t, "converged", object, "-n", n.name, "--opened", "--timeout=5m",
			"--driver-name="+nodeIdentityDriver, "--plugin-namespace=refvol-node-identity")
		if status != 0 {
			t.Errorf("converged --opened of %s: status %d: %s%s", object, status, stdout, stderr)
		}
	}
}

// withVariables is a pod with a variable of each kind, and with files and subPaths of the ConfigMap, which its liveness probe reads.
func withVariables(name, label string) *corev1.Pod {
	spec := newPod(name, asNode("files", "native"), corev1.Volume{Name: "native", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
	}})
	if label != "" {
		spec.Labels, spec.Annotations = map[string]string{restartLabel: label}, map[string]string{"refvol.dev/spread": "0s"}
	}
	c := &spec.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: "files", MountPath: mountDir + "path", SubPath: "mode"},
		corev1.VolumeMount{Name: "native", MountPath: mountDir + "native-path", SubPath: "mode"})
	c.LivenessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/probe", "read", mountDir + "path"}}},
		PeriodSeconds: 1, TimeoutSeconds: 10,
	}
	c.Env = []corev1.EnvVar{{Name: "MODE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "mode",
	}}}}
	c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "db"}}}}
	return spec
}

// hasVariables returns an error if the first process of the container "probe" lacks one. "" stands for a variable that it must not have.
func (p *pod) hasVariables(ctx context.Context, want map[string]string) error {
	text, err := p.ask(ctx, "probe", "read", "/proc/1/environ")
	if err != nil {
		return err
	}
	got := environment(text)
	for name, value := range want {
		if got[name] != value {
			return fmt.Errorf("pod %s has %s=%q, want %q", p.Name, name, got[name], value)
		}
	}
	return nil
}

// restarts returns how often the container has restarted. It fails if the pod is another one.
func (p *pod) restarts(t *testing.T) int32 {
	t.Helper()
	now := must.Get(p.now(t.Context()))(t)
	if now.UID != p.UID {
		t.Fatalf("pod %s is another one", p.Name)
	}
	for _, c := range now.Status.ContainerStatuses {
		if c.Name == "probe" {
			return c.RestartCount
		}
	}
	t.Fatalf("pod %s has no status of its container", p.Name)
	return 0
}
