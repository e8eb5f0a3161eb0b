package manifests

import (
	"fmt"
	"strings"
	"testing"
)

// TestRestartWithLimits: pods of a namespace with a LimitRange or a quota, as tenants have, are still created with the sidecar.
func TestRestartWithLimits(t *testing.T) {
	s := newRestartSuite(t)
	s.enforce(t)
	for name, test := range map[string]struct {
		kind, spec, refused string
	}{
		"a minimum of 10m and 16Mi": {kind: "LimitRange", spec: "{limits: [{type: Container, min: {cpu: 10m, memory: 16Mi}}]}"},
		"a ratio of at most 10":     {kind: "LimitRange", spec: "{limits: [{type: Container, maxLimitRequestRatio: {cpu: 10, memory: 10}}]}"},
		"a quota of everything": {
			kind: "ResourceQuota", spec: "{hard: {requests.cpu: 2, requests.memory: 1Gi, limits.cpu: 4, limits.memory: 2Gi}}",
		},
		// docs/apply.md says what to set.
		"a minimum above the sidecar's request": {
			kind: "LimitRange", spec: "{limits: [{type: Container, min: {memory: 64Mi}}]}", refused: "minimum memory usage per Container is 64Mi",
		},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := ownNamespace(t, map[string]string{restartLabel: "true"})
			limits := fmt.Sprintf("apiVersion: v1\nkind: %s\nmetadata: {name: limits, namespace: %s}\nspec: %s\n", test.kind, namespace, test.spec)
			if out, err := shared.kubectlWith(t.Context(), []byte(limits), "apply", "-f", "-"); err != nil {
				t.Fatal(out, err)
			}
			pod := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: app, namespace: %s}
spec:
  containers:
  - name: app
    image: example.com/app
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 500m, memory: 128Mi}}
    envFrom: [{configMapRef: {name: settings}}]
`, namespace)
			out, err := shared.kubectlWith(t.Context(), []byte(pod), "create", "--dry-run=server", "-f", "-")
			if (err != nil) != (test.refused != "") || !strings.Contains(fmt.Sprint(err, out), test.refused) {
				t.Errorf("%v %s", err, out)
			}
		})
	}
}
