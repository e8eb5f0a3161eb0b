package suite

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRestartLabelWithLimits: in a namespace whose LimitRange has a minimum and a ratio, as tenants have, a pod that the namespace's label
// changes starts, and restarts in place.
func TestRestartLabelWithLimits(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.needsPolicies()
	resources := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Min: resources("10m", "16Mi"), MaxLimitRequestRatio: resources("10", "10"),
	}}}}
	if _, err := n.client.CoreV1().LimitRanges(n.name).Create(t.Context(), limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.label(restartLabel)
	n.createConfigMap("settings", object{"mode": "slow"})

	spec := withVariable("limited")
	delete(spec.Labels, restartLabel)
	limited := spec.DeepCopy()
	limited.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: resources("10m", "16Mi"), Limits: resources("100m", "64Mi")}
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	eventually(t, podTimeout, "the LimitRange and the label count", func(ctx context.Context) error {
		if _, err := n.client.CoreV1().Pods(n.name).Create(ctx, spec, dryRun); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a pod without limits was not refused: %v", err)
		}
		got, err := n.client.CoreV1().Pods(n.name).Create(ctx, limited, dryRun)
		if err != nil {
			return err
		}
		if c := got.Spec.InitContainers; len(c) != 1 || c[0].Name != "refvol-notify" {
			return fmt.Errorf("the pod has the init containers %+v", c)
		}
		return nil
	})

	p := n.start(limited)
	n.updateConfigMap("settings", object{"mode": "fast"})
	eventually(t, restartTimeout, "the new variable, by a restart in place", func(ctx context.Context) error {
		if err := p.hasVariables(ctx, map[string]string{"MODE": "fast"}); err != nil {
			return err
		}
		if p.restarts(t) == 0 {
			return errors.New("the status has no restart")
		}
		return nil
	})
	p.awaitReady()
}
