package deploy

import (
	"reflect"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"
)

// TestChartOpenShift: the constraints admit the plugin's pod, and name no other account.
func TestChartOpenShift(t *testing.T) {
	with, hooks, err := renderChart(newest, values{"openshift": values{"enabled": true}})
	if err != nil {
		t.Fatal(err)
	}
	without, _, err := renderChart(newest, nil)
	if err != nil {
		t.Fatal(err)
	}
	var constraints map[string]any
	for _, document := range strings.Split(string(with), "\n---\n") {
		if strings.Contains(document, "kind: SecurityContextConstraints") {
			with = []byte(strings.Replace(string(with), document, "", 1))
			if err := yaml.UnmarshalStrict([]byte(document), &constraints); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantObjects(t, decode(t, chart, with), decode(t, chart, without))
	anyone := map[string]any{"type": "RunAsAny"}
	want := map[string]any{
		"apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints",
		"metadata": map[string]any{"name": name, "labels": map[string]any{
			"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "refvol", "app.kubernetes.io/managed-by": "Helm",
			"app.kubernetes.io/part-of": "refvol", "app.kubernetes.io/version": "v0.1.0", "helm.sh/chart": "refvol-0.1.0",
		}},
		"users":   []any{"system:serviceaccount:" + namespace + ":" + name},
		"volumes": []any{"hostPath", "projected"}, "priority": nil,
		"allowPrivilegedContainer": true, "allowPrivilegeEscalation": true, "allowHostDirVolumePlugin": true,
		"allowHostIPC": false, "allowHostNetwork": false, "allowHostPID": false, "allowHostPorts": false,
		"allowedCapabilities": []any{}, "defaultAddCapabilities": []any{}, "requiredDropCapabilities": []any{},
		"readOnlyRootFilesystem": true,
		"fsGroup":                anyone, "runAsUser": anyone, "seLinuxContext": anyone, "supplementalGroups": anyone,
	}
	if !reflect.DeepEqual(constraints, want) {
		t.Errorf("constraints %v\n       want %v", constraints, want)
	}
	if user := only[*batchv1.Job](t, decode(t, chart, hooks)).Spec.Template.Spec.SecurityContext.RunAsUser; user != nil {
		t.Errorf("the check runs as user %d, which OpenShift refuses", *user)
	}
}

// TestChartOpenShiftVolumes: the constraints allow the kinds of volumes that the pod has, each once.
func TestChartOpenShiftVolumes(t *testing.T) {
	manifests, _, err := renderChart(newest, values{"openshift": values{"enabled": true}, "extraVolumes": []any{
		values{"name": "a", "configMap": values{"name": "ca"}},
		values{"name": "b", "secret": values{"secretName": "s"}},
		values{"name": "c", "configMap": values{"name": "x"}},
		values{"name": "d", "hostPath": values{"path": "/x"}},
		values{"name": "e"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if want := "\nvolumes: [hostPath, projected, configMap, secret, emptyDir]\n"; !strings.Contains(string(manifests), want) {
		t.Errorf("there is no %q in\n%s", want, manifests)
	}
	for _, kind := range []string{"flexVolume", "configmap"} {
		says := "extraVolumes[1]: Forbidden: " + kind + ": with openshift.enabled, the volumes may be hostPath, projected, configMap"
		_, _, err := renderChart(newest, values{"openshift": values{"enabled": true}, "extraVolumes": []any{
			values{"name": "a", "configMap": values{"name": "ca"}}, values{"name": "b", kind: values{}},
		}})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}
