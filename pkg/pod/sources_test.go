package pod

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/pkg/volume"
)

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
		"spec.volumes[1]: " + volumes:                                                                            {},
		"spec.volumes[1].projected.sources[1].downwardAPI: " + sources:                                           projected(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{}}),
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
	if err := checkName(field.NewPath("name"), volume.ConfigMap, strings.Repeat("n", 253)); err != nil {
		t.Errorf("the longest name: %v", err)
	}
	// The error for a name that the pod doesn't have lists those that can be meant: a CSI volume can't be shown, and may be the one that asks.
	csi := corev1.Volume{Name: "csi", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}}
	for want, volumes := range map[string][]corev1.Volume{
		`the pod has no volume "v"`:              nil,
		`the pod has no volume "v"; it has a, b`: {{Name: "a"}, csi, {Name: "b"}},
	} {
		_, err := VolumeSources(&corev1.PodSpec{Volumes: volumes}, field.NewPath("spec"), "ns", "v")
		expect.Equal(t, "the error", fmt.Sprint(err), want)
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
	expect.Equal(t, "types that are shown", shown, 3+2)
}

func unknown(names ...string) (vars []volume.EnvVar) {
	for _, name := range names {
		vars = append(vars, volume.EnvVar{Name: name, Unknown: true})
	}
	return vars
}

func TestEnv(t *testing.T) {
	for _, test := range []struct {
		name, env string // of the second of two containers, in YAML
		want      volume.Env
		leftOut   []string
	}{
		{
			name: "what a publish can't know, sorted",
			env: `
  envFrom: [{}]
  env:
  - {name: TOKEN, valueFrom: {fileKeyRef: {volumeName: config, path: app.env, key: TOKEN}}}
  - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: TIER, valueFrom: {fieldRef: {fieldPath: "metadata.labels['tier']"}}}
  - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
  - {name: FUTURE, valueFrom: {fieldRef: {fieldPath: metadata.name, apiVersion: v2}}}
  - {name: CPUS, valueFrom: {resourceFieldRef: {containerName: app, resource: limits.cpu}}}
  - {name: NEW, valueFrom: {}}
  - {name: KEPT, value: x}
`,
			want: volume.Env{Vars: append(unknown("TOKEN", "IP", "TIER", "NOTE", "FUTURE", "CPUS", "NEW"), volume.EnvVar{Name: "KEPT", Value: "x"})},
			leftOut: []string{
				"CPUS (resourceFieldRef limits.cpu)",
				"FUTURE (fieldRef metadata.name)",
				"IP (fieldRef status.podIP)",
				"NEW (a source of an unknown kind)",
				"NOTE (fieldRef metadata.annotations['note'])",
				"TIER (fieldRef metadata.labels['tier'])",
				"TOKEN (fileKeyRef config app.env TOKEN)",
				"spec.containers[1].envFrom[0] (a source of an unknown kind)",
			},
		},
		{
			name: "the last of a name counts",
			env: `
  env:
  - {name: A, value: shown}
  - {name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  - {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  - {name: B, value: shown}
  - {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  - {name: C, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
`,
			want: volume.Env{Vars: []volume.EnvVar{
				{Name: "A", Value: "shown"}, {Name: "A", Unknown: true}, {Name: "B", Unknown: true}, {Name: "B", Value: "shown"}, {Name: "C", Unknown: true}, {Name: "C", Unknown: true},
			}},
			leftOut: []string{"A (resourceFieldRef limits.cpu)", "C (fieldRef status.hostIP)"},
		},
	} {
		spec := parseSpec(t, "containers:\n- {name: first, env: [{name: FIRST, value: x}]}\n- name: app"+test.env)
		got, leftOut, err := Env(spec, "ns", "app")
		if err != nil || !reflect.DeepEqual(got, test.want) || !slices.Equal(leftOut, test.leftOut) {
			t.Errorf("%s:\ngot  %+v, left out %q, %v\nwant %+v, %q", test.name, got, leftOut, err, test.want, test.leftOut)
		}
	}
}

func TestEnvRefuses(t *testing.T) {
	for _, test := range []struct{ name, spec, want string }{
		{"no such container", "initContainers: [{name: init}]\ncontainers: [{name: web}, {name: log}]", `the pod has no container "app"; it has init, web, log`},
		{"an ephemeral container", "containers: [{name: web}]\nephemeralContainers: [{name: app}]", `the pod has no container "app"; it has web`},
		{"an object without a name", "containers: [{name: app, envFrom: [{configMapRef: {}}]}]", "spec.containers[0].envFrom[0].configMapRef.name: Required value: must name a ConfigMap"},
		{
			"a name that is none", "containers: [{name: app, envFrom: [{configMapRef: {name: '" + strings.Repeat(",", 200_000) + "'}}]}]",
			`spec.containers[0].envFrom[0].configMapRef.name: Invalid value: "a string of 200000 bytes": must be no more than 253 bytes`,
		},
		{
			"a key without a name", "containers: [{name: app, env: [{name: K, valueFrom: {secretKeyRef: {}}}]}]",
			"[spec.containers[0].env[0].valueFrom.secretKeyRef.key: Required value: must name a key of the object, " +
				"spec.containers[0].env[0].valueFrom.secretKeyRef.name: Required value: must name a Secret]",
		},
	} {
		got, leftOut, err := Env(parseSpec(t, test.spec), "ns", "app")
		expect.Equal(t, test.name, fmt.Sprint(err), test.want)
		if !reflect.DeepEqual(got, volume.Env{}) || leftOut != nil {
			t.Errorf("%s: got %+v, %v beside the error", test.name, got, leftOut)
		}
	}
}
