package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
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
	watch         bool
	sortBy        string
}

func newStatusCommand(flags *genericclioptions.ConfigFlags) *cobra.Command {
	opts := &statusOptions{cluster: newClusterOptions(flags)}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the volumes of all nodes, the worst first",
		Long: `The command asks the plugin of each node by a port-forward, with your own rights, and lists the volumes with
their pod, condition and versions. Nodes whose plugin is missing, is not ready, is too old or does not
answer come first, also with -n. The command prints no value of an object.

Without -n the command lists all namespaces, whatever the kubeconfig says.

The exit status is:
  0  Everything is normal.
  1  A volume is abnormal or not reported, a publish failed in the last ten minutes, a plugin is not ready or
     lacks a right, or a node does not answer.
  2  A request failed, or the command line is wrong.`,
		Example: `  # What needs attention?
  kubectl refvol status --abnormal

  # The volumes of a namespace, with all objects
  kubectl refvol status -n shop -o wide

  # One node, again and again
  kubectl refvol status --node node-1 -w

  # The volumes that use the most memory come last
  kubectl refvol status --sort-by=.bytes

  # For scripts
  kubectl refvol status -o custom-columns=NODE:.node,POD:.pod.name,CONDITION:.condition --no-headers
  kubectl refvol status -n shop -o name
  kubectl refvol status --abnormal -o json -w | jq --unbuffered '.nodes[].report.volumes[]?'
  kubectl refvol status -o jsonpath='{.nodes[*].report.volumes[?(@.abnormal==true)].pod.name}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flag := cmd.Flag("namespace"); flag.Changed && !opts.allNamespaces {
				opts.namespace = flag.Value.String()
			}
			return opts.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	opts.output = newOutput(cmd, outputWide, outputName)
	opts.cluster.addFlags(cmd.Flags())
	opts.cluster.addStatusFlags(cmd.Flags())
	fs := cmd.Flags()
	fs.BoolVarP(&opts.allNamespaces, "all-namespaces", "A", opts.allNamespaces, "If true, the command lists all namespaces, as without -n.")
	fs.StringSliceVar(&opts.nodes, "node", opts.nodes, "The nodes whose plugins are asked. The default is all nodes.")
	fs.BoolVar(&opts.abnormal, "abnormal", opts.abnormal, "If true, the command lists only what needs attention.")
	fs.BoolVarP(&opts.watch, "watch", "w", opts.watch, "If true, the command keeps running, and prints the lines that change, or with -o the whole status after each change.")
	fs.StringVar(&opts.sortBy, "sort-by", opts.sortBy, "The field by which tables and custom columns are sorted, such as '{.since}'.")
	return cmd
}

func (o *statusOptions) validate() error {
	if o.sortBy != "" && !o.output.isRows() {
		return fmt.Errorf("--sort-by: -o %s prints no rows", o.output.format())
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
	table := status.Table{Wide: o.output.format() == outputWide, Abnormal: o.abnormal, NoHeaders: *o.output.NoHeaders}
	if o.watch {
		return o.follow(ctx, func() (*clusterStatus, error) { return o.collect(ctx, c) }, table, stdout, stderr)
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
func (o *statusOptions) follow(ctx context.Context, collect func() (*clusterStatus, error), table status.Table, stdout, stderr io.Writer) error {
	var last *clusterStatus
	table.Printed = &status.Printed{}
	warned := ""
	for {
		s, err := collect()
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
			if err := o.printChange(stdout, s, table); err != nil {
				return err
			}
			last, warned, table.NoHeaders = s, "", true
		}
		pause(ctx, watchPause)
	}
}

// printChange prints what has changed: the lines of a table, or the whole status in another format.
func (o *statusOptions) printChange(w io.Writer, s *clusterStatus, table status.Table) error {
	if o.output.isText() {
		return o.print(w, s, table)
	}
	table.Wide = true
	if err := s.writeTable(io.Discard, table); err != nil || !table.Printed.Changed() {
		return err
	}
	return o.print(w, s, table)
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
	if o.abnormal && !o.output.isText() {
		s = s.abnormal()
	}
	switch {
	case o.output.format() == outputName:
		return writeNames(w, s.pods(), o.namespace == "")
	case !o.output.isRows():
		return o.output.write(w, s)
	case o.output.isText() && o.sortBy == "":
		return s.writeTable(w, table)
	}
	volumes, rows, err := s.rows()
	if err != nil {
		return err
	}
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	if o.sortBy != "" {
		if order, err = sortedBy(o.sortBy, rows); err != nil {
			return err
		}
	}
	if o.output.isText() {
		places := map[*status.Volume]int{}
		for place, i := range order {
			places[volumes[i]] = place
		}
		table.Compare = func(a, b *status.Volume) int { return cmp.Compare(places[a], places[b]) }
		return s.writeTable(w, table)
	}
	sorted := make([]map[string]any, len(rows))
	for place, i := range order {
		sorted[place] = rows[i]
	}
	return o.output.write(w, &rowList{status.APIVersion, clusterStatusKind + "Rows", sorted})
}

// rowList has the volumes of a status, one for each row.
type rowList struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Items      []map[string]any `json:"items"`
}
