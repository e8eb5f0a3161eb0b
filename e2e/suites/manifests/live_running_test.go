package manifests

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestRunningPodsStayAsTheyAre: a pod that was there before the component, and one whose policy for updates is gone.
func TestRunningPodsStayAsTheyAre(t *testing.T) {
	s, earlier := newLiveSuite(t), newLiveSuite(t) // enforce removes the pods of the first
	t.Cleanup(func() { s.remove(t) })
	t.Cleanup(func() { earlier.remove(t) })
	pods, olds := shared.Client().CoreV1().Pods(s.live), shared.Client().CoreV1().Pods(earlier.live)
	old, err := olds.Create(t.Context(), changed(mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a"), func(pod *corev1.Pod) { pod.Name = "old" }),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.enforce(t)
	old.Labels = map[string]string{"changed": "yes"}
	got, err := olds.Update(t.Context(), old, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantSameMounts(t, old, got)

	live := changed(mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a"), func(pod *corev1.Pod) { pod.Name = "live" })
	if live, err = pods.Create(t.Context(), live, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const says = "pod %s/live on no node yet\nError: uninstall-check: pods that use the driver csi.refvol.dev: 1: "
	if out, status := uninstallCheck(t); status != 1 || !strings.HasPrefix(out, fmt.Sprintf(says, s.live)) {
		t.Errorf("uninstall-check: status %d, it says %q", status, out)
	}
	for _, command := range documented(t, "live-namespaces.md", "delete mutatingadmissionpolicybinding") {
		mustKubectl(t, command...)
	}
	native := liveCase{pod: mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a")}
	harness.Eventually(t, soon, func() error {
		pod, err := createdIn(t.Context(), s.live, native.pod.DeepCopy())
		if err == nil && pod.Spec.Containers[0].VolumeMounts[0].Name != "a" {
			err = errors.New("new pods are changed still")
		}
		return err
	})
	nothing := updatesOfLivePods()[0]
	wantRefusal(t, nothing.try(t, live))
	mustKubectl(t, "delete", "mutatingadmissionpolicybinding", liveUpdatePolicy)
	harness.Eventually(t, soon, func() error {
		if err := nothing.try(t, live); !apierrors.IsInvalid(err) {
			return fmt.Errorf("without the policy for updates: %w", orNone(err))
		}
		return nil
	})
}

// TestHelmKeepsThePolicyForUpdates: what pods need that were changed stays, whether live namespaces are switched off or the
// release is uninstalled, and the release takes it again.
func TestHelmKeepsThePolicyForUpdates(t *testing.T) {
	h := newHelm(t)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := h.run(ctx, "uninstall", "refvol", "--no-hooks", "--ignore-not-found")
		_, deleted := shared.kubectl(ctx, "delete", "--selector=app.kubernetes.io/name=refvol-plugin", kinds, "--all-namespaces")
		if err := errors.Join(err, deleted); err != nil {
			t.Error(err)
		}
	})
	const policy, binding = "mutatingadmissionpolicy.admissionregistration.k8s.io/", "mutatingadmissionpolicybinding.admissionregistration.k8s.io/"
	const kept = policy + "refvol-live-update\n" + binding + "refvol-live-update\n"
	const all = policy + "refvol-live\n" + policy + "refvol-live-update\n" +
		binding + "refvol-live-namespaces\n" + binding + "refvol-live-pods\n" + binding + "refvol-live-update\n"
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"install", "refvol", h.chart, "--set=live.enabled=true"}, all},
		{[]string{"upgrade", "refvol", h.chart, "--set=live.enabled=false"}, kept},
		{[]string{"upgrade", "refvol", h.chart, "--set=live.enabled=true"}, all},
		{[]string{"uninstall", "refvol", "--no-hooks"}, kept},
		{[]string{"install", "refvol", h.chart}, kept},
		{[]string{"upgrade", "refvol", h.chart, "--set=live.enabled=true"}, all},
		{[]string{"uninstall", "refvol", "--no-hooks"}, kept},
	} {
		h.must(t, step.args...)
		if got := ofRelease(t, "mutatingadmissionpolicies,mutatingadmissionpolicybindings"); got != step.want {
			t.Errorf("after %q there are\n%s\nwant\n%s", step.args, got, step.want)
		}
	}
	for _, command := range documented(t, "live-namespaces.md", "delete mutatingadmissionpolicybinding,mutatingadmissionpolicy") {
		mustKubectl(t, command...)
	}
	h.wantNothingLeft(t)
}

// TestLiveNamespaceWithWebhook: a container that a webhook injects, after the policy has had its turn, is changed too, with
// the live volume that is there.
func TestLiveNamespaceWithWebhook(t *testing.T) {
	s := newLiveSuite(t)
	s.enforce(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionreviewv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		kind := admissionreviewv1.PatchTypeJSONPatch
		review.Response = &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: &kind, Patch: []byte(`[
			{"op": "add", "path": "/spec/containers/-", "value": {"name": "injected", "image": "localhost/none",
				"volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]}},
			{"op": "add", "path": "/spec/volumes/-", "value": {"name": "b", "secret": {"secretName": "db"}}}
		]`)}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	hooks := shared.Client().AdmissionregistrationV1().MutatingWebhookConfigurations()
	none := admissionv1.SideEffectClassNone
	hook, err := hooks.Create(t.Context(), &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.live},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "inject.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
			ClientConfig: admissionv1.WebhookClientConfig{
				URL:      &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.live}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hooks.Delete(context.WithoutCancel(t.Context()), hook.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	var pod *corev1.Pod
	harness.Eventually(t, soon, func() error {
		pod, err = createdIn(t.Context(), s.live, mounting([]corev1.Volume{ofConfigMap("a")}, "a:/etc/a"))
		if err == nil && len(pod.Spec.Containers) != 2 {
			err = errors.New("the webhook injects nothing yet")
		}
		return err
	})
	for i, want := range [][]string{{"refvol-a"}, {"refvol-a", "refvol-b"}} {
		for j, name := range want {
			if got := pod.Spec.Containers[i].VolumeMounts[j].Name; got != name {
				t.Errorf("container %d mounts %s, want %s", i, got, name)
			}
		}
	}
	if len(pod.Spec.Volumes) != 5 { // two native ones, two live ones, and the account's token
		t.Errorf("the pod is\n%s", outline(pod))
	}

	// With the volume that the webhook adds the pod would have too many: that one stays native, and the others are live.
	full := crossed(1, mostPodVolumes-1)
	full.Spec.Volumes = append(full.Spec.Volumes, ofConfigMap("a"))
	full.Spec.Containers[0].VolumeMounts = append(full.Spec.Containers[0].VolumeMounts, mounts("a:/etc/a")...)
	if pod, err = createdIn(t.Context(), s.live, full); err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]string{{"/etc/a": "refvol-a", "/etc/v0": "refvol-v0"}, {"/a": "refvol-a", "/b": "b"}} {
		for _, m := range pod.Spec.Containers[i].VolumeMounts {
			if name := want[m.MountPath]; name != "" && m.Name != name {
				t.Errorf("container %d of a full pod mounts %s at %s, want %s", i, m.Name, m.MountPath, name)
			}
		}
	}
	if len(pod.Spec.Volumes) != 2*mostPodVolumes+2 { // and the webhook's, and the account's token
		t.Errorf("the full pod has %d volumes", len(pod.Spec.Volumes))
	}
}
