package manifests

import (
	"path/filepath"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestPodIdentityExample asks whether the service account of the example's pod may do what the plugin
// does with its token, of what the pod shows, and more.
func TestPodIdentityExample(t *testing.T) {
	const namespace, account = "refvol-example-identity", "app"
	mustKubectl(t, "apply", "--filename="+filepath.Join(shared.deploy, "examples", "pod-identity.yaml"))
	t.Cleanup(func() { removePods(t) })
	may := func(verb, resource, name string) error {
		return allowed(t.Context(), "system:serviceaccount:"+namespace+":"+account, nil,
			authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: resource, Name: name})
	}
	for resource, name := range map[string]string{"configmaps": "settings", "secrets": "credentials"} {
		for _, verb := range []string{"get", "list", "watch"} {
			harness.Eventually(t, soon, func() error { return may(verb, resource, name) }) // the authorizer hears of the grant
			for _, more := range []string{"", "another"} {
				if may(verb, resource, more) == nil {
					t.Errorf("it may %s %s %q", verb, resource, more)
				}
			}
		}
		if may("delete", resource, name) == nil {
			t.Errorf("it may delete %s", name)
		}
	}
}
