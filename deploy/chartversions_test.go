package deploy

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// needed returns the Kubernetes version that docs/install.md names for a component, or nothing.
func needed(t *testing.T, component string) string {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(component) + "` \\|.*\\| ?([0-9.]*) \\|$").FindStringSubmatch(documents(t)["docs/install.md"])
	if row == nil {
		t.Fatalf("docs/install.md has no row for %s", component)
	}
	return row[1]
}

// TestChartNeedsNewer: a value that needs a newer cluster than there is fails with a sentence, and renders on the
// one that docs/install.md names, also on a provider's build of it.
func TestChartNeedsNewer(t *testing.T) {
	for _, test := range []struct{ component, says, do string }{
		{"node-identity", "identity=node", "set identity=pod"},
		{"admission", "admission.enabled=true", "leave it out"},
		{"admission-read-only", "admissionReadOnly.enabled=true", "leave it out"},
		{"live", "live.enabled=true", "leave it out"},
		{"live-node-selector", "liveNodeSelector.enabled=true", "leave it out"},
		{"restart", "restart.enabled=true", "leave it out"},
		{"staged", "staged.enabled=true", "leave it out"},
		{"startup-taint", "startupTaint.enabled=true", "leave it out"},
		{"flow-schema", "flowSchema.enabled=true", "leave it out"},
	} {
		version := needed(t, test.component)
		var minor int
		if _, err := fmt.Sscanf(version, "1.%d", &minor); err != nil {
			t.Fatalf("%s needs %q", test.component, version)
		}
		_, overrides := valuesOf(t, []string{test.component})
		if test.component != "node-identity" {
			overrides["identity"] = "pod"
		}
		before := fmt.Sprintf("v1.%d.9", minor-1)
		says := fmt.Sprintf("%s needs Kubernetes %s or newer, and this cluster has %s: %s", test.says, version, before, test.do)
		if _, _, err := renderChart(before, overrides); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s on %s: %v, want %q", test.component, before, err, says)
		}
		for _, enough := range []string{"v" + version + ".0", "v" + version + ".0-gke.1", "v" + version + ".0-eks-1a2b"} {
			if _, _, err := renderChart(enough, overrides); err != nil {
				t.Errorf("%s on %s: %v", test.component, enough, err)
			}
		}
	}
	if _, _, err := renderChart("v1.28.0", values{"identity": "pod"}); err != nil {
		t.Error(err)
	}
}

// TestChartOnOlderVersions: what the chart renders for a version has no field or kind that this version doesn't have. The
// group flowcontrol.apiserver.k8s.io is left out: 1.28 lacks its v1. A field of a newer version is noticed.
// It compiles the types of each version.
func TestChartOnOlderVersions(t *testing.T) {
	if os.Getenv("REFVOL_LONG") == "" {
		t.Skip("it runs in the long form (REFVOL_LONG=1)")
	}
	with := values{
		"identity": "pod", "crossNamespace": true, "namespace": values{"create": true}, "networkPolicy": values{"enabled": true},
		"dashboard": values{"enabled": true}, "priorityClassQuota": values{"enabled": true}, "startupProbe": values{"periodSeconds": 2},
		"serviceAccount": values{"annotations": values{"a": "b"}}, "env": []any{values{"name": "A", "value": "b"}},
		"extraVolumes": []any{values{"name": "ca", "configMap": values{"name": "ca"}}}, "extraVolumeMounts": []any{values{"name": "ca", "mountPath": "/ca"}},
	}
	later := maps.Clone(with)
	later["admission"], later["startupTaint"] = values{"enabled": true}, values{"enabled": true}
	for _, test := range []struct {
		modfile, version string
		overrides        values
		says             string
	}{
		{"versions/1.28.mod", "v1.28.0", with, ""},
		{"versions/1.32.mod", "v1.32.0", later, ""},
		{"versions/1.32.mod", newest, later, `unknown field "spec.serviceAccountTokenInSecrets"`},
		{"versions/1.28.mod", "v1.32.0", later, `no kind "ValidatingAdmissionPolicy"`},
	} {
		manifests, hooks := chartTexts(t, test.version, test.overrides)
		decode := exec.CommandContext(t.Context(), "go", "-C", "decode", "run", "-modfile="+test.modfile, ".")
		decode.Stdin = bytes.NewReader(append(manifests, hooks...))
		out, err := decode.CombinedOutput()
		if (err == nil) != (test.says == "") || !strings.Contains(string(out), test.says) {
			t.Errorf("%s with %s: %v, want %q in\n%s", test.version, test.modfile, err, test.says, out)
		}
	}
}

// TestChartWithoutOperator: a cluster gets what it has a kind for of the Prometheus operator's, and without these the plugin alone.
func TestChartWithoutOperator(t *testing.T) {
	loaded := must.Get(load())(t)
	for _, kinds := range [][]string{nil, {"PodMonitor"}, {"PrometheusRule"}} {
		capabilities := common.DefaultCapabilities.Copy()
		capabilities.KubeVersion = common.KubeVersion{Version: newest}
		for _, kind := range kinds {
			capabilities.APIVersions = append(capabilities.APIVersions, "monitoring.coreos.com/v1/"+kind)
		}
		got, _, err := renderOn(loaded, capabilities, values{"metrics": values{"enabled": true}})
		found := regexp.MustCompile(`monitoring.coreos.com/v1\nkind: (\w+)`).FindAllStringSubmatch(string(got), -1)
		if err != nil || len(found) != len(kinds) || len(kinds) > 0 && found[0][1] != kinds[0] {
			t.Errorf("with %q there is\n%s\n(%v)", kinds, got, err)
		}
	}
}

// TestChartInAnotherNamespace: with namespaceOverride every object and every reference is there, also those of the hooks.
func TestChartInAnotherNamespace(t *testing.T) {
	const elsewhere = "storage"
	manifests, hooks := chartTexts(t, newest, values{
		"namespaceOverride": elsewhere, "namespace": values{"create": true}, "live": values{"enabled": true}, "restart": values{"enabled": true}, "openshift": values{"enabled": true},
		"flowSchema": values{"enabled": true}, "metrics": values{"enabled": true}, "dashboard": values{"enabled": true},
		"networkPolicy": values{"enabled": true}, "priorityClassQuota": values{"enabled": true}, "startupTaint": values{"enabled": true},
	})
	for _, line := range strings.Split(string(manifests)+string(hooks), "\n") {
		// The command that takes the release back names the release's own.
		if strings.Contains(line, namespace) && !strings.Contains(line, "helm rollback refvol 1 --namespace "+namespace) {
			t.Errorf("the release's namespace is in %q", line)
		}
	}
	constraints := regexp.MustCompile(`(?s)---\n[^\n]*\n(?:#[^\n]*\n)*apiVersion: security.openshift.io.*?(\n---|$)`)
	objects := decode(t, chart, constraints.ReplaceAll(manifests, []byte("\n---")))
	if own := only[*corev1.Namespace](t, objects); own.Name != elsewhere {
		t.Errorf("the namespace is %s", own.Name)
	}
	// The bindings for labels leave out the plugin's namespace.
	leftOut := metav1.LabelSelectorRequirement{
		Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system", elsewhere},
	}
	for _, name := range []string{"refvol-live-namespaces", "refvol-live-pods", "refvol-restart-namespaces", "refvol-restart-pods"} {
		binding, ok := byName(t, objects)["MutatingAdmissionPolicyBinding "+name].(*admissionv1.MutatingAdmissionPolicyBinding)
		if !ok {
			t.Fatalf("there is no binding %s", name)
		}
		namespaces := binding.Spec.MatchResources.NamespaceSelector.MatchExpressions
		if !reflect.DeepEqual(namespaces[len(namespaces)-1], leftOut) {
			t.Errorf("binding %s: %s, want %s", name, asJSON(t, namespaces), asJSON(t, leftOut))
		}
	}
}
