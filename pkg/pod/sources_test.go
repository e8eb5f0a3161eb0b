package pod

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// The longest name that an object can have is accepted.
func TestTheLongestName(t *testing.T) {
	if err := checkName(field.NewPath("name"), volume.ConfigMap, strings.Repeat("n", 253)); err != nil {
		t.Error(err)
	}
}

func TestVolumeSourcesRefuses(t *testing.T) {
	const (
		volumes = "Forbidden: a volume source shows a configMap, secret or projected volume; mount this one itself"
		sources = "Forbidden: a volume source shows configMap and secret sources only; move this one to another projected volume, and mount that beside it"
		badMode = "must be an integer from 0 to 511 (octal 0777)"
		badUser = "must be between 0 and 2147483647, inclusive"
	)
	large, negative, nobody, tooLarge := int32(0o1000), int32(-1), int64(-1), int64(1<<31)
	object := corev1.LocalObjectReference{Name: "o"}
	projected := func(source corev1.VolumeProjection) corev1.VolumeSource {
		fine := corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: object}}
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{fine, source}}}
	}
	items := func(item corev1.KeyToPath) corev1.VolumeSource {
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object, Items: []corev1.KeyToPath{{Key: "k", Path: "k"}, item}}}
	}
	for want, source := range map[string]corev1.VolumeSource{
		"spec.volumes[1].emptyDir: " + volumes:                                                                   {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"spec.volumes[1].csi: " + volumes:                                                                        {CSI: &corev1.CSIVolumeSource{}},
		"spec.volumes[1].downwardAPI: " + volumes:                                                                {DownwardAPI: &corev1.DownwardAPIVolumeSource{}},
		"spec.volumes[1]: " + volumes:                                                                            {},
		"spec.volumes[1].projected.sources[1].downwardAPI: " + sources:                                           projected(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{}}),
		"spec.volumes[1].projected.sources[1].serviceAccountToken: " + sources:                                   projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}),
		"spec.volumes[1].projected.sources[1].clusterTrustBundle: " + sources:                                    projected(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}),
		"spec.volumes[1].projected.sources[1].podCertificate: " + sources:                                        projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{}}),
		"spec.volumes[1].projected.sources[1]: " + sources:                                                       projected(corev1.VolumeProjection{}),
		"spec.volumes[1].configMap.name: Required value: must name a ConfigMap":                                  {ConfigMap: &corev1.ConfigMapVolumeSource{}},
		"spec.volumes[1].secret.secretName: Required value: must name a Secret":                                  {Secret: &corev1.SecretVolumeSource{}},
		`spec.volumes[1].secret.secretName: Invalid value: "a/b": may not contain '/'`:                           {Secret: &corev1.SecretVolumeSource{SecretName: "a/b"}},
		`spec.volumes[1].configMap.name: Invalid value: "a string of 254 bytes": must be no more than 253 bytes`: {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: strings.Repeat("n", 254)}}},
		"spec.volumes[1].projected.sources[1].secret.name: Required value: must name a Secret":                   projected(corev1.VolumeProjection{Secret: &corev1.SecretProjection{}}),
		"spec.volumes[1].projected.sources[1].configMap.name: Required value: must name a ConfigMap":             projected(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}),
		"spec.volumes[1].secret.defaultMode: Invalid value: 512: " + badMode:                                     {Secret: &corev1.SecretVolumeSource{SecretName: "o", DefaultMode: &large}},
		"spec.volumes[1].projected.defaultMode: Invalid value: -1: " + badMode:                                   {Projected: &corev1.ProjectedVolumeSource{DefaultMode: &negative, Sources: projected(corev1.VolumeProjection{}).Projected.Sources[:1]}},
		"spec.volumes[1].configMap.defaultUser: Invalid value: -1: " + badUser:                                   {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object, DefaultUser: &nobody}},
		"spec.volumes[1].configMap.items[1].user: Invalid value: 2147483648: " + badUser:                         items(corev1.KeyToPath{Key: "k", Path: "p", User: &tooLarge}),
		"spec.volumes[1].configMap.items[1].key: Required value: must name a key of the object":                  items(corev1.KeyToPath{Path: "p"}),
		`spec.volumes[1].configMap.items[1].path: Invalid value: "a string of 4 bytes": must not contain ".."`:   items(corev1.KeyToPath{Key: "k", Path: "../x"}),
		"spec.volumes[1].configMap.items[1].mode: Invalid value: 512: " + badMode:                                items(corev1.KeyToPath{Key: "k", Path: "p", Mode: &large}),
	} {
		spec := corev1.PodSpec{Volumes: []corev1.Volume{{Name: "other"}, {Name: "v", VolumeSource: source}}}
		if got, err := VolumeSources(&spec, field.NewPath("spec"), "ns", "v"); got != nil || err == nil || err.Error() != want {
			t.Errorf("\ngot  %+v, %v\nwant %s", got, err, want)
		}
	}
	// The error for a name that the pod doesn't have lists those that can be meant: a CSI volume can't be shown, and may be the one that asks.
	csi := corev1.Volume{Name: "csi", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}}
	for want, volumes := range map[string][]corev1.Volume{
		`the pod has no volume "v"`:              nil,
		`the pod has no volume "v"; it has a, b`: {{Name: "a"}, csi, {Name: "b"}},
	} {
		_, err := VolumeSources(&corev1.PodSpec{Volumes: volumes}, field.NewPath("spec"), "ns", "v")
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// Every volume type and every kind of projected source is shown or refused by its name, including those of a new version of Kubernetes.
func TestVolumeSourcesKnowsEveryType(t *testing.T) {
	shown := 0
	for _, union := range []reflect.Type{reflect.TypeFor[corev1.VolumeSource](), reflect.TypeFor[corev1.VolumeProjection]()} {
		for i := range union.NumField() {
			value := reflect.New(union).Elem()
			value.Field(i).Set(reflect.New(union.Field(i).Type.Elem()))
			name, _, _ := strings.Cut(union.Field(i).Tag.Get("json"), ",")
			var source corev1.VolumeSource
			at := "spec.volumes[0]."
			switch v := value.Interface().(type) {
			case corev1.VolumeSource:
				source = v
			case corev1.VolumeProjection:
				source.Projected = &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{v}}
				at += "projected.sources[0]."
			}
			spec := corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: source}}}
			_, err := VolumeSources(&spec, field.NewPath("spec"), "ns", "v")
			if err == nil || strings.Contains(err.Error(), "Required value") {
				shown++
			} else if !strings.HasPrefix(err.Error(), at+name+": Forbidden: ") {
				t.Errorf("%s%s: got %v", at, name, err)
			}
		}
	}
	if want := 3 + 2; shown != want {
		t.Errorf("%d types are shown, want %d", shown, want)
	}
}
