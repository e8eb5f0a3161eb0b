package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

const (
	// completionTimeout limits a completion, because somebody waits at a prompt.
	completionTimeout = 3 * time.Second
	// completions limits the names that are offered.
	completions = 500
)

// completion returns the possible values at a place of the command line. It returns none if they cannot be found.
type completion func(ctx context.Context, c *cluster, typed string) []string

// complete makes kubectl complete contexts, namespaces, nodes and objects.
func complete(root *cobra.Command, flags *genericclioptions.ConfigFlags) {
	ask := func(find completion) cobra.CompletionFunc {
		return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			c, err := newClusterOptions(flags).connect()
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
			defer cancel()
			return startingWith(typed, find(ctx, c, typed)), cobra.ShellCompDirectiveNoFileComp
		}
	}
	contexts := func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		config, err := flags.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return startingWith(typed, slices.Sorted(maps.Keys(config.Contexts))), cobra.ShellCompDirectiveNoFileComp
	}
	// It only fails for a flag that does not exist.
	_ = root.RegisterFlagCompletionFunc("context", contexts)
	_ = root.RegisterFlagCompletionFunc("namespace", ask(namesOf("namespaces")))
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "converged", "rollout":
			cmd.ValidArgsFunction = ask(completeObjects(flags))
		case "status":
			_ = cmd.RegisterFlagCompletionFunc("node", ask(namesOf("nodes")))
		}
	}
}

// namesOf completes the names of a cluster-scoped resource.
func namesOf(resource string) completion {
	return func(ctx context.Context, c *cluster, _ string) []string { return c.names(ctx, resource, "") }
}

// completeObjects completes a type or, after its slash, the names of its objects.
func completeObjects(flags *genericclioptions.ConfigFlags) completion {
	return func(ctx context.Context, c *cluster, typed string) (all []string) {
		kind, _, found := strings.Cut(typed, "/")
		if !found {
			return []string{"configmap/", "secret/"}
		}
		namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
		if err != nil || kind != "configmap" && kind != "secret" {
			return nil
		}
		for _, name := range c.names(ctx, kind+"s", namespace) {
			all = append(all, kind+"/"+name)
		}
		return all
	}
}

// names lists names only, without values.
func (c *cluster) names(ctx context.Context, resource, namespace string) (names []string) {
	list, err := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource(resource)).Namespace(namespace).
		List(ctx, metav1.ListOptions{Limit: completions})
	if err != nil {
		return nil
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

func startingWith(typed string, all []string) []string {
	return slices.DeleteFunc(all, func(one string) bool { return !strings.HasPrefix(one, typed) })
}
