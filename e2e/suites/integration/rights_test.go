package integration

import (
	"strings"
	"testing"

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
