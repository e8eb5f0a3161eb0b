package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/pkg/command"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// clusterStatusKind is that of a clusterStatus.
const clusterStatusKind = "ClusterStatus"

// clusterStatus is what `status` prints as JSON and YAML. Its apiVersion is status.APIVersion.
type clusterStatus struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Driver     string       `json:"driver"`
	Nodes      []nodeStatus `json:"nodes"`
}

// nodeStatus is one node's. Report is missing if the plugin gave none; then there is a Problem.
type nodeStatus struct {
	Node    string         `json:"node"`
	Plugin  string         `json:"plugin,omitempty"`
	Problem *fleet.Problem `json:"problem,omitempty"`
	// Pods is how many pods with a volume of the driver are there and have not ended.
	Pods int `json:"pods"`
	// Missing are the volumes of pods that have started which the plugin does not report.
	Missing []missingVolume `json:"missing,omitempty"`
	Report  *status.Report  `json:"report,omitempty"`
}

// missingVolume is a volume that a plugin should report.
type missingVolume struct {
	Pod  status.Pod `json:"pod"`
	Name string     `json:"name"`
}

// statusOptions are the flags of `status`.
type statusOptions struct {
	cluster *clusterOptions
	output  string
}

func newStatusCommand() *cobra.Command {
	opts := &statusOptions{cluster: newClusterOptions(), output: status.OutputTable}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the volumes of all nodes, the worst first",
		Long: `Asks the plugin of each node by a port-forward, with your own rights, and lists the volumes with
pod, condition and versions. Nodes whose plugin is missing, not ready or too old, or does not
answer, come first. It prints no value.

Exits with status 0 if all is normal, 1 if a volume is abnormal or not reported, a publish failed in the
last ten minutes, or a node does not answer, and 2 if a request failed or the command line is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	opts.cluster.addFlags(cmd.Flags(), false)
	cmd.Flags().StringVarP(&opts.output, "output", "o", opts.output, "table, wide, json or yaml")
	return cmd
}

func (o *statusOptions) run(ctx context.Context, stdout io.Writer) error {
	if err := status.ValidateOutput(o.output); err != nil {
		return err
	}
	c, err := o.cluster.connect()
	if err != nil {
		return err
	}
	survey, err := c.fleet().Collect(ctx)
	if err != nil {
		return err
	}
	s := newClusterStatus(o.cluster.driver, survey)
	if o.output == status.OutputJSON || o.output == status.OutputYAML {
		err = status.Encode(stdout, o.output, s)
	} else {
		err = s.writeTable(stdout, o.output == status.OutputWide)
	}
	if err != nil {
		return err
	}
	return s.judge()
}

// newClusterStatus orders the nodes: those with a problem first, then those with more abnormal volumes.
func newClusterStatus(driver string, survey *fleet.Survey) *clusterStatus {
	s := &clusterStatus{APIVersion: status.APIVersion, Kind: clusterStatusKind, Driver: driver, Nodes: []nodeStatus{}}
	for i := range survey.Nodes {
		n := &survey.Nodes[i]
		s.Nodes = append(s.Nodes, nodeStatus{n.Name, n.Plugin, n.Problem, len(n.Pods), missing(n), n.Report})
	}
	slices.SortStableFunc(s.Nodes, func(a, b nodeStatus) int { return cmp.Compare(b.badness(), a.badness()) })
	return s
}

// missing returns what a node's plugin should report and doesn't. A publish may not have begun before the pod
// has started.
func missing(n *fleet.Node) []missingVolume {
	var all []missingVolume
	for _, pod := range n.Missing() {
		for _, name := range pod.Volumes {
			if pod.Started {
				all = append(all, missingVolume{status.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}, name})
			}
		}
	}
	return all
}

// badness is larger for a node that is worse.
func (n *nodeStatus) badness() int {
	bad := len(n.Missing)
	if n.Problem != nil {
		bad += 1 << 32
	}
	if n.Report != nil {
		bad += n.Report.Unhealthy() + len(n.Report.Refused)
	}
	return bad
}

// judge returns an error if anything is abnormal.
func (s *clusterStatus) judge() error {
	problems, abnormal, refused, missing := 0, 0, 0, 0
	for i := range s.Nodes {
		missing += len(s.Nodes[i].Missing)
		if s.Nodes[i].Problem != nil {
			problems++
		}
		if s.Nodes[i].Report != nil {
			abnormal += s.Nodes[i].Report.Unhealthy()
			refused += len(s.Nodes[i].Report.Refused)
		}
	}
	if problems+abnormal+refused+missing == 0 {
		return nil
	}
	return command.WithStatus(command.No, fmt.Errorf("status: nodes with a problem: %d of %d, abnormal volumes: %d, failed publishes: %d, volumes that no plugin reports: %d",
		problems, len(s.Nodes), abnormal, refused, missing))
}

// writeTable writes the nodes that have a problem, and then the volumes.
func (s *clusterStatus) writeTable(w io.Writer, wide bool) error {
	table := status.NewTabWriter(w)
	var reports []*status.Report
	problems := 0
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Report != nil {
			reports = append(reports, n.Report)
		}
		for _, problem := range n.problems() {
			if problems++; problems == 1 {
				table.Line("NODE", "PLUGIN", "PODS", "PROBLEM", "MESSAGE")
			}
			table.Line(n.Node, cmp.Or(n.Plugin, "-"), fmt.Sprint(n.Pods), string(problem.Reason), problem.Message)
		}
	}
	if problems > 0 {
		table.Line()
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return status.Table{Wide: wide, Nodes: true}.Write(w, reports...)
}

// problems returns what is wrong with the node, and not with a volume that is reported.
func (n *nodeStatus) problems() []fleet.Problem {
	var all []fleet.Problem
	if n.Problem != nil {
		all = append(all, *n.Problem)
	}
	for _, m := range n.Missing {
		all = append(all, fleet.Problem{
			Reason: fleet.NotReported, Message: fmt.Sprintf("volume %s of pod %s/%s, which runs", m.Name, m.Pod.Namespace, m.Pod.Name),
		})
	}
	return all
}
