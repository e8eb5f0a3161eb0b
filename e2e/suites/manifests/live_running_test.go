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

// runningStay: a pod that was there before the component, and one whose policies are gone.
func (s labels) runningStay(t *testing.T, old *corev1.Pod) {
	old.Labels = map[string]string{"changed": "yes"}
	got, err := shared.Client().CoreV1().Pods(old.Namespace).Update(t.Context(), old, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantSameMounts(t, old, got)

	t.Cleanup(func() { s.remove(t) })
	live, err := shared.Client().CoreV1().Pods(s.live).Create(t.Context(), liveAtOnce(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const says = "pod %s/app on no node yet\nError: uninstall-check: pods that use the driver csi.refvol.dev: 1: "
	if out, status := uninstallCheck(t); status != 1 || !strings.HasPrefix(out, fmt.Sprintf(says, s.live)) {
		t.Errorf("uninstall-check: status %d, it says %q", status, out)
	}
	for _, command := range documented(t, "live-namespaces.md", "delete mutatingadmissionpolicybinding") {
		mustKubectl(t, command...)
	}
	s.awaitMount(t, "a")
	nothing := updatesOfLivePods()[0]
	wantRefusal(t, nothing.try(t, live))
	mustKubectl(t, "delete", "mutatingadmissionpolicybinding", "refvol-live-update")
	harness.Eventually(t, soon, func() error {
		if err := nothing.try(t, live); !apierrors.IsInvalid(err) {
			return fmt.Errorf("without the policy for updates: %w", orNone(err))
		}
		return nil
	})
}

// withWebhook: a container that a webhook injects, after the policy has had its turn, is changed too, with the live volume that is there.
func (s labels) withWebhook(t *testing.T) {
	s.live = ownNamespace(t, map[string]string{liveLabel: "true"}) // the webhook stays there a moment longer
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
}
