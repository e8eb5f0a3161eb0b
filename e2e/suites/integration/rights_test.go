package integration

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestPluginNeedsItsRights: a plugin that reads with its own rights says which of them it lacks, as far as its
// flags need them.
func TestPluginNeedsItsRights(t *testing.T) {
	t.Parallel()
	const (
		lacks  = "[-]rights: the plugin's account lacks rights in all namespaces that --identity=plugin needs: "
		others = "get of pods, create of events, patch of events: grant them, or choose another identity"
	)
	base := shared.kubeconfig
	for name, test := range map[string]struct {
		kubeconfig string
		args       []string
		reason     string
	}{
		"base":                     {base, nil, ""},
		"none":                     {shared.powerless, nil, lacks + "list of configmaps, watch of configmaps, list of secrets, watch of secrets, " + others},
		"get":                      {componentAccount(t, "get"), []string{"--change-detection=Get"}, ""},
		"Get with the base":        {base, []string{"--change-detection=Get"}, lacks + "get of configmaps, get of secrets: "},
		"cache":                    {componentAccount(t, "cache"), []string{"--change-detection=Cache"}, ""},
		"Cache with get":           {componentAccount(t, "get"), []string{"--change-detection=Cache"}, lacks + "get of nodes: "},
		"cross-namespace":          {componentAccount(t, "cross-namespace"), []string{"--cross-namespace"}, ""},
		"cross-namespace, base":    {base, []string{"--cross-namespace"}, lacks + "create of subjectaccessreviews: "},
		"the pods' rights instead": {componentAccount(t, "pod-identity"), []string{"--identity=pod"}, ""},
		"none, the pods' instead":  {shared.powerless, []string{"--identity=pod"}, strings.Replace(lacks, "=plugin", "=pod", 1) + others},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := readyNode(t, harness.PluginOptions{Kubeconfig: test.kubeconfig, Args: append([]string{"--identity=plugin"}, test.args...)})
			if test.reason == "" {
				n.becomes()
			} else {
				n.becomes(test.reason)
			}
		})
	}
}

// TestRightsThatComeLate: the plugin becomes ready when it gets its rights.
func TestRightsThatComeLate(t *testing.T) {
	t.Parallel()
	rules, err := harness.Rules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	name := uniqueName("late")
	kubeconfig := newAccount(t, name, rulesExcept(append([]rbacv1.PolicyRule{}, rules...), "secrets"))
	n := readyNode(t, harness.PluginOptions{Kubeconfig: kubeconfig, Args: []string{"--identity=plugin", "--publish-wait=1s"}})
	n.becomes("[-]rights: ", "list of secrets")
	n.value("app")
	wantStatus(t, n.finalAnswer(n.short("app")), codes.PermissionDenied)

	roles := shared.Client().RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = rules
	if _, err := roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.becomes()
	v := n.short("app")
	n.publishesSoon(v)
	n.mustUnpublish(v)
	n.logs("The API server lets the plugin work", 1)
}
