package manifests

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// createdIn returns the pod that the API server would make of one in a namespace, which the pod doesn't name, without what it makes up.
func createdIn(ctx context.Context, namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := shared.Client().CoreV1().Pods(namespace).Create(ctx, pod, dryRun())
	if err != nil {
		return nil, err
	}
	made.UID, made.CreationTimestamp, made.ManagedFields = "", metav1.Time{}, nil
	if made.GenerateName != "" {
		made.Name = ""
	}
	for i := range made.Spec.Volumes {
		cutSuffix(&made.Spec.Volumes[i].Name)
	}
	for _, containers := range [][]corev1.Container{made.Spec.InitContainers, made.Spec.Containers} {
		for _, c := range containers {
			for i := range c.VolumeMounts {
				cutSuffix(&c.VolumeMounts[i].Name)
			}
		}
	}
	return made, nil
}

// cutSuffix cuts off what is random in the name of the volume with the account's token.
func cutSuffix(name *string) {
	if strings.HasPrefix(*name, "kube-api-access-") {
		*name = "kube-api-access-"
	}
}

func writable(readOnly *bool) corev1.Volume {
	v := inline(attributes{"configMap": "app", "uid": "7", "defaultMode": "0400"})
	v.CSI.ReadOnly = readOnly
	return v
}

// TestReadOnlyIsSet has the API server make pods without the policy and with it: what differs is
// csi.readOnly of the driver's volumes.
func TestReadOnlyIsSet(t *testing.T) {
	pods := podsOfEveryKind()
	before := map[string]*corev1.Pod{}
	for name, pod := range pods {
		before[name] = must.Get(createdIn(t.Context(), consumer, pod.DeepCopy()))(t)
	}
	install(t, "admission-read-only")
	harness.Eventually(t, soon, func() error {
		pod, err := createdIn(t.Context(), consumer, podWith("sentinel", writable(nil)))
		if err == nil && pod.Spec.Volumes[0].CSI.ReadOnly == nil {
			err = errors.New("the policy that sets readOnly is not in force")
		}
		return err
	})
	for name, pod := range pods {
		t.Run(name, func(t *testing.T) {
			got := must.Get(createdIn(t.Context(), consumer, pod.DeepCopy()))(t)
			want := before[name]
			for _, v := range want.Spec.Volumes {
				if v.CSI != nil && v.CSI.Driver == harness.DriverName {
					v.CSI.ReadOnly = new(true)
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("\n got %s\nwant %s", asYAML(got), asYAML(want))
			}
		})
	}
}

// podsOfEveryKind are pods with volumes of the driver, of another, of none, and of all sorts.
func podsOfEveryKind() map[string]*corev1.Pod {
	foreign := func(readOnly *bool) corev1.Volume {
		v := writable(readOnly)
		v.Name, v.CSI.Driver = "foreign", "csi.example.com"
		v.CSI.FSType, v.CSI.NodePublishSecretRef = new("ext4"), &corev1.LocalObjectReference{Name: "credentials"}
		return v
	}
	full := writable(nil)
	full.CSI.FSType, full.CSI.NodePublishSecretRef = new(""), &corev1.LocalObjectReference{Name: "credentials"}
	bare := podWith("app")
	bare.Spec.AutomountServiceAccountToken = new(false)
	generated := podWith("", writable(nil))
	generated.GenerateName = "app-"
	crowded := merged(podWith("app", foreign(nil), ofConfigMap("b"), ofSecret("c"), writable(nil), projecting("d"), empty("e"), writable(new(false))), `
metadata: {labels: {a: b}, finalizers: [example.com/finalizer]}
spec: {nodeSelector: {kubernetes.io/os: linux}, initContainers: [{name: init, image: none, volumeMounts: [{name: b-1, mountPath: /b}]}], containers: [
  {name: c, ports: [{containerPort: 80}, {containerPort: 81}], env: [{name: A, value: $(B)}, {name: B}],
   volumeMounts: [{name: b-1, mountPath: /b}, {name: foreign, mountPath: /foreign}]}]}`)
	pods := map[string]*corev1.Pod{
		"no volume at all":                  bare,
		"false":                             podWith("app", writable(new(false))),
		"true":                              podWith("app", writable(new(true))),
		"some of several":                   podWith("app", writable(new(true)), writable(nil), writable(new(false)), writable(nil)),
		"all of its fields":                 podWith("app", full),
		"another driver":                    podWith("app", foreign(nil)),
		"two drivers, true for the foreign": podWith("app", foreign(new(true)), writable(nil)),
		"name made up by the API server":    generated,
		"twenty of the largest":             podWith("app", repeat(20, largest())...),
		"a pod with everything":             crowded,
	}
	for i := range pods["twenty of the largest"].Spec.Volumes {
		pods["twenty of the largest"].Spec.Volumes[i].CSI.ReadOnly = nil
	}
	return pods
}
