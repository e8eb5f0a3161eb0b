package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

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

// keep leaves out the volumes of other namespaces. What is wrong with a node stays.
func (s *clusterStatus) keep(namespace string) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.Missing = slices.DeleteFunc(n.Missing, func(m missingVolume) bool { return m.Pod.Namespace != namespace })
		if n.Report != nil {
			n.Report.Volumes = slices.DeleteFunc(n.Report.Volumes, func(v status.Volume) bool { return v.Pod.Namespace != namespace })
			n.Report.Refused = slices.DeleteFunc(n.Report.Refused, func(r status.Refusal) bool { return r.Pod.Namespace != namespace })
		}
	}
}

// keepAbnormal leaves out the volumes that need nobody.
func (s *clusterStatus) keepAbnormal() {
	for i := range s.Nodes {
		if r := s.Nodes[i].Report; r != nil {
			r.Volumes = slices.DeleteFunc(r.Volumes, func(v status.Volume) bool { return !v.Unhealthy })
		}
	}
}

// counts says how much is there and how much is abnormal. A plugin that is not ready is a problem of its node already.
func (s *clusterStatus) counts() *status.Counts {
	c := &status.Counts{Nodes: len(s.Nodes)}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Report != nil {
			c.Add(n.Report)
		}
		if n.Problem != nil {
			c.Problems++
		}
		c.NotReported += len(n.Missing)
	}
	return c
}

// writeTable writes the nodes that have a problem, and then the volumes.
func (s *clusterStatus) writeTable(w io.Writer, table status.Table) error {
	var reports []*status.Report
	var lines [][]string
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Report != nil {
			reports = append(reports, n.Report)
		}
		for _, problem := range n.problems() {
			line := []string{n.Node, cmp.Or(n.Plugin, "-"), fmt.Sprint(n.Pods), string(problem.Reason), problem.Message}
			if table.IsNew(n.Node + string(problem.Reason) + problem.Message) {
				lines = append(lines, line)
			}
		}
	}
	if len(lines) > 0 && !table.NoHeaders {
		lines = append(append([][]string{{"NODE", "PLUGIN", "PODS", "PROBLEM", "MESSAGE"}}, lines...), nil)
	}
	if err := status.WriteTable(w, lines); err != nil {
		return err
	}
	return table.Write(w, s.counts(), reports...)
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

// rows returns the volumes as custom-columns sees them: as in JSON, with the node.
func (s *clusterStatus) rows() ([]map[string]any, error) {
	object, err := generic(s)
	if err != nil {
		return nil, err
	}
	var rows []map[string]any
	nodes, _ := object["nodes"].([]any)
	for _, n := range nodes {
		node, _ := n.(map[string]any)
		report, _ := node["report"].(map[string]any)
		volumes, _ := report["volumes"].([]any)
		for _, v := range volumes {
			if row, ok := v.(map[string]any); ok {
				row["node"] = node["node"]
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}
