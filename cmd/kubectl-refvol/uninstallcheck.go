package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/refvol/refvol/pkg/fleet"
)

// uninstallCheckOptions are the flags of uninstall-check.
type uninstallCheckOptions struct {
	cluster  *clusterOptions
	nextStep string
}

func newUninstallCheckCommand(flags *genericclioptions.ConfigFlags) *cobra.Command {
	opts := &uninstallCheckOptions{cluster: newClusterOptions(flags)}
	cmd := &cobra.Command{
		Use:   "uninstall-check",
		Short: "List the pods that use the driver, and fail if there are any",
		Long: `The command lists the pods of all namespaces that have a volume of the driver and have not ended. Without
the plugin nothing unmounts such a volume, and its pod stays in Terminating. The command also lists a pod
that has ended, if it is being deleted or its node has no ready plugin, because its volume may still be
mounted. The command needs the right to list pods, and changes nothing.

The exit status is:
  0  There is no such pod.
  1  There is such a pod.
  2  The answer is not known, because the API server does not answer or the command line is wrong.`,
		Example: `  # May the plugin be removed?
  kubectl refvol uninstall-check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	opts.cluster.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&opts.nextStep, "next-step", opts.nextStep, "The text that is printed at the end of a refusal. It says what to do.")
	return cmd
}

// run lists the pods, one per line.
func (o *uninstallCheckOptions) run(ctx context.Context, stdout io.Writer) error {
	c, err := o.cluster.connect()
	if err != nil {
		return err
	}
	selector, err := labels.Parse(o.cluster.selector)
	if err != nil {
		return fmt.Errorf("--plugin-selector: %w", err)
	}
	pods, err := fleet.Holding(ctx, c.client.CoreV1().Pods("").List, o.cluster.driver, func(pod *corev1.Pod) bool {
		return pod.Namespace == o.cluster.namespace && selector.Matches(labels.Set(pod.Labels))
	})
	if err != nil {
		return err
	}
	for _, pod := range pods {
		on := "on no node yet"
		if pod.Node != "" {
			on = "on node " + pod.Node
		}
		if pod.Ended {
			on += ", which has ended, and may have mounts there"
		}
		if _, err := fmt.Fprintf(stdout, "pod %s/%s %s\n", pod.Namespace, pod.Name, on); err != nil {
			return fmt.Errorf("write the list of pods: %w", err)
		}
	}
	if len(pods) > 0 {
		refusal := fmt.Sprintf("uninstall-check: pods that use the driver %s: %d: delete them first, because without the plugin they stay in Terminating; switch live namespaces off before (docs/live-namespaces.md)", o.cluster.driver, len(pods))
		if o.nextStep != "" {
			refusal += "; " + o.nextStep
		}
		return &statusError{errors.New(refusal), no}
	}
	return nil
}
