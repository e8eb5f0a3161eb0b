package pod

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

func TestEnv(t *testing.T) {
	for _, test := range []struct {
		name, container string // YAML of the second of two containers
		want            volume.Env
		leftOut         []string
	}{
		{
			name: "what a publish can't know, sorted",
			container: `
name: app
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
			want: volume.Env{Vars: []volume.EnvVar{
				{Name: "TOKEN", Unknown: true},
				{Name: "IP", Unknown: true},
				{Name: "TIER", Unknown: true},
				{Name: "NOTE", Unknown: true},
				{Name: "FUTURE", Unknown: true},
				{Name: "CPUS", Unknown: true},
				{Name: "NEW", Unknown: true},
				{Name: "KEPT", Value: "x"},
			}},
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
			container: `
name: app
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
		t.Run(test.name, func(t *testing.T) {
			spec := parseSpec(t, "containers: [{name: first, env: [{name: FIRST, value: x}]}]")
			spec.Containers = append(spec.Containers, parseSpec(t, "containers:\n- "+indent(test.container)).Containers...)
			got, leftOut, err := Env(spec, "ns", "app")
			must(t, err)
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %s\nwant %s", describe(got), describe(test.want))
			}
			if !slices.Equal(leftOut, test.leftOut) {
				t.Errorf("left out %q, want %q", leftOut, test.leftOut)
			}
		})
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
		if err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", test.name, err, test.want)
		}
		if !reflect.DeepEqual(got, volume.Env{}) || leftOut != nil {
			t.Errorf("%s: got %s, %v beside the error", test.name, describe(got), leftOut)
		}
	}
}
