package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// showFailure writes what tells why a run failed: the last lines of every
// component, and what the cluster says of its pods.
func showFailure(ctx context.Context, c *kindCluster, k kubectl) {
	// A cluster that doesn't come up at all shouldn't hold this up for long.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	show := func(title string, args ...string) {
		fmt.Printf("\n=== %s\n", title)
		if err := k.command(append(args, "--request-timeout=10s")...).run(ctx); err != nil {
			fmt.Println(err)
		}
	}
	c.nodeLogs(ctx)
	show("nodes", "get", "nodes", "--output=wide")
	show("pods", "get", "pods", "--all-namespaces", "--output=wide")
	show("events of pods", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp",
		"--field-selector=involvedObject.kind=Pod,type!=Normal")
	for _, namespace := range []string{"kube-system", "refvol-system"} {
		names, err := k.command("get", "pods", "--namespace", namespace, "--output=name",
			"--request-timeout=10s").output(ctx, os.Stderr)
		if err != nil {
			fmt.Println(err)
			continue
		}
		for _, pod := range strings.Fields(names) {
			show(namespace+" "+pod, "logs", "--namespace", namespace, pod, "--all-containers", "--tail=25")
		}
	}
}
