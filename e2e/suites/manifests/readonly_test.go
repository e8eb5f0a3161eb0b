package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const readOnlyComponent = "admission-read-only"

// setReadOnly installs the component, with others, until the end of the test, and waits until it
// is in force.
func setReadOnly(t *testing.T, others ...string) {
	t.Helper()
	install(t, append(others, readOnlyComponent)...)
	harness.Eventually(t, soon, func() error {
		pod, err := created(t.Context(), podWith("sentinel", writable(nil)))
		if err == nil && pod.Spec.Volumes[0].CSI.ReadOnly == nil {
			err = errors.New("the policy that sets readOnly is not in force")
		}
		return err
	})
}

// created returns the pod that the API server would make of one, without what it makes up.
func created(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return createdIn(ctx, consumer, pod)
}

// createdIn is created in a namespace, which the pod doesn't name.
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
		made.Spec.Volumes[i].Name = withoutSuffix(made.Spec.Volumes[i].Name)
	}
	for _, containers := range [][]corev1.Container{made.Spec.InitContainers, made.Spec.Containers} {
		for _, c := range containers {
			for i := range c.VolumeMounts {
				c.VolumeMounts[i].Name = withoutSuffix(c.VolumeMounts[i].Name)
			}
		}
	}
	return made, nil
}

// withoutSuffix returns the name of a volume without what is random in that of the account's token.
func withoutSuffix(name string) string {
	const token = "kube-api-access-"
	if strings.HasPrefix(name, token) {
		return token
	}
	return name
}

// writable is a volume of the driver with anything for readOnly.
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
		var err error
		if before[name], err = created(t.Context(), pod.DeepCopy()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	setReadOnly(t)
	for name, pod := range pods {
		t.Run(name, func(t *testing.T) {
			got, err := created(t.Context(), pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			want := before[name]
			for _, v := range want.Spec.Volumes {
				if v.CSI != nil && v.CSI.Driver == harness.DriverName {
					v.CSI.ReadOnly = new(true)
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("\n got %s\nwant %s", shown(t, got), shown(t, want))
			}
		})
	}
}

// shown is the beginning of a pod as JSON.
func shown(t *testing.T, pod *corev1.Pod) []byte {
	t.Helper()
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return text[:min(len(text), 4<<10)]
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
	pods := map[string]*corev1.Pod{
		"no volume at all":                  bare,
		"only the account's token":          podWith("app"),
		"left out":                          podWith("app", writable(nil)),
		"false":                             podWith("app", writable(new(false))),
		"true":                              podWith("app", writable(new(true))),
		"some of several":                   podWith("app", writable(new(true)), writable(nil), writable(new(false)), writable(nil)),
		"all of its fields":                 podWith("app", full),
		"no attributes":                     podWith("app", inline(nil)),
		"another driver":                    podWith("app", foreign(nil)),
		"another driver, false":             podWith("app", foreign(new(false))),
		"two drivers":                       podWith("app", foreign(nil), writable(nil)),
		"two drivers, false":                podWith("app", writable(new(false)), foreign(new(false))),
		"two drivers, true for the foreign": podWith("app", foreign(new(true)), writable(nil)),
		"name made up by the API server":    generated,
		"twenty of the largest":             podWith("app", repeat(20, largest())...),
		"a pod with everything":             crowded(foreign(nil), writable(nil)),
	}
	for i := range pods["twenty of the largest"].Spec.Volumes {
		pods["twenty of the largest"].Spec.Volumes[i].CSI.ReadOnly = nil
	}
	return pods
}

// crowded is a pod with volumes of many kinds between those given, and more than the usual fields.
func crowded(volumes ...corev1.Volume) *corev1.Pod {
	for _, source := range []corev1.VolumeSource{
		{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))}},
		{HostPath: &corev1.HostPathVolumeSource{Path: "/run"}},
		{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "app"},
			Items:                []corev1.KeyToPath{{Key: "a", Path: "b", Mode: new(int32(0o400))}, {Key: "b", Path: "c"}},
		}},
		{Secret: &corev1.SecretVolumeSource{SecretName: "db", Optional: new(true)}},
		{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "x", Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}}},
		}}},
		{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
		{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}},
		}}},
		{CSI: &corev1.CSIVolumeSource{Driver: "csi.example.org"}},
	} {
		volumes = append(volumes, corev1.Volume{Name: "more", VolumeSource: source})
	}
	pod := podWith("app", append(volumes, writable(new(false)))...)
	pod.Labels, pod.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
	pod.Finalizers = []string{"example.com/finalizer"}
	mounts := []corev1.VolumeMount{{Name: pod.Spec.Volumes[1].Name, MountPath: "/etc/app", ReadOnly: true}, {Name: pod.Spec.Volumes[0].Name, MountPath: "/data"}}
	pod.Spec.Containers[0].VolumeMounts = mounts
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 81}}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "$(B)"}, {Name: "B"}}
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("0.1")}
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "localhost/none", VolumeMounts: mounts}}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists}}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(7)), RunAsUser: new(int64(8))}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"}
	return pod
}
