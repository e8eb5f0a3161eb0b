package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// statusOptions are the flags of status.
type statusOptions struct {
	cluster *clusterOptions
	output  *output
	// namespace is "" for all namespaces.
	namespace     string
	allNamespaces bool
	nodes         []string
	abnormal      bool
	noHeaders     bool
	watch         bool
}

func newStatusCommand(flags *genericclioptions.ConfigFlags) *cobra.Command {
	opts := &statusOptions{cluster: newClusterOptions(flags)}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the volumes of all nodes, the worst first",
		Long: `Asks the plugin of each node by a port-forward, with your own rights, and lists the volumes with
pod, condition and versions. Nodes whose plugin is missing, not ready or too old, or does not
answer, come first, also with -n. It prints no value.

Without -n it lists all namespaces, whatever the kubeconfig says.

Exits with status 0 if all is normal, 1 if a volume is abnormal or not reported, a publish failed in the
last ten minutes, a plugin is not ready or lacks a right, or a node does not answer, and 2 if a request failed or the
command line is wrong.`,
		Example: `  # What needs attention?
  kubectl refvol status --abnormal

  # The volumes of a namespace, with all objects
  kubectl refvol status -n shop -o wide

  # One node, again and again
  kubectl refvol status --node node-1 -w

  # For scripts
  kubectl refvol status -o custom-columns=NODE:.node,POD:.pod.name,CONDITION:.condition --no-headers
  kubectl refvol status -o jsonpath='{.nodes[*].report.volumes[?(@.abnormal==true)].pod.name}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flag := cmd.Flag("namespace"); flag.Changed && !opts.allNamespaces {
				opts.namespace = flag.Value.String()
			}
			return opts.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	opts.output = newOutput(cmd, "wide", "custom-columns")
	opts.cluster.addFlags(cmd.Flags())
	opts.cluster.addStatusFlags(cmd.Flags())
	fs := cmd.Flags()
	fs.BoolVarP(&opts.allNamespaces, "all-namespaces", "A", opts.allNamespaces, "all namespaces, as without -n")
	fs.StringSliceVar(&opts.nodes, "node", opts.nodes, "ask these nodes only; may be repeated")
	fs.BoolVar(&opts.abnormal, "abnormal", opts.abnormal, "list only what needs attention")
	fs.BoolVar(&opts.noHeaders, "no-headers", opts.noHeaders, "print neither headings nor the last line, which counts")
	fs.BoolVarP(&opts.watch, "watch", "w", opts.watch, "go on, and print the lines that change")
	return cmd
}

func (o *statusOptions) validate() error {
	if o.watch && !o.output.isOwn("wide") {
		return fmt.Errorf("--watch prints tables only, not %s", o.output.format())
	}
	return o.output.validate()
}

func (o *statusOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	c, err := o.cluster.connect()
	if err != nil {
		return err
	}
	table := status.Table{Wide: o.output.format() == "wide", Abnormal: o.abnormal, NoHeaders: o.noHeaders}
	if o.watch {
		return o.follow(ctx, c, table, stdout, stderr)
	}
	s, err := o.collect(ctx, c)
	if err != nil {
		return err
	}
	if err := o.print(stdout, s, table); err != nil {
		return err
	}
	return s.counts().Err()
}

// follow prints changes until it is interrupted.
func (o *statusOptions) follow(ctx context.Context, c *cluster, table status.Table, stdout, stderr io.Writer) error {
	var last *clusterStatus
	table.Printed = &status.Printed{}
	warned := ""
	for {
		s, err := o.collect(ctx, c)
		switch {
		case ctx.Err() != nil && last != nil:
			return last.counts().Err()
		case err != nil && (last == nil || isRefusal(err)):
			return err
		case err != nil:
			if warned != err.Error() {
				warned = err.Error()
				fmt.Fprintf(stderr, "Warning: %v: trying again\n", err) //nolint:errcheck // the table counts, not this text
			}
		default:
			if err := s.writeTable(stdout, table); err != nil {
				return err
			}
			last, warned, table.NoHeaders = s, "", true
		}
		pause(ctx, watchPause)
	}
}

// collect asks the plugins, and removes what the flags exclude.
func (o *statusOptions) collect(ctx context.Context, c *cluster) (*clusterStatus, error) {
	survey, err := c.fleet(o.nodes...).Collect(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range o.nodes {
		if !slices.ContainsFunc(survey.Nodes, func(n fleet.Node) bool { return n.Name == name }) {
			return nil, fmt.Errorf("--node: %q has no plugin, no driver %s and no pod that uses it: is it the right name?", name, o.cluster.driver)
		}
	}
	s := newClusterStatus(o.cluster.driver, survey)
	if o.namespace != "" {
		s.keepNamespace(o.namespace)
	}
	return s, nil
}

// print writes the status in the format of -o.
func (o *statusOptions) print(w io.Writer, s *clusterStatus, table status.Table) error {
	name, spec, _ := strings.Cut(o.output.format(), "=")
	if o.abnormal && !o.output.isOwn("wide") {
		s.keepAbnormal()
	}
	switch {
	case o.output.isOwn("wide"):
		return s.writeTable(w, table)
	case name == "custom-columns":
		rows, err := s.rows()
		if err != nil {
			return err
		}
		return printColumns(w, spec, !o.noHeaders, rows)
	case name == "name":
		return o.printNames(w, s)
	}
	return o.output.write(w, s)
}

// printNames writes the pods that have the volumes, without duplicates.
func (o *statusOptions) printNames(w io.Writer, s *clusterStatus) error {
	printer, err := o.output.printer()
	if err != nil {
		return err
	}
	pods := map[string]bool{}
	for i := range s.Nodes {
		if r := s.Nodes[i].Report; r != nil {
			for j := range r.Volumes {
				pods[cmp.Or(r.Volumes[j].Pod.Name, r.Volumes[j].Pod.UID)] = true
			}
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		pod := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod"}}
		pod.SetName(name)
		errs = append(errs, printSafely(w, printer, pod))
	}
	return errors.Join(errs...)
}
