package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// clusterStatusKind is the kind of a clusterStatus.
const clusterStatusKind = "ClusterStatus"

// clusterStatus is what status prints as JSON and YAML. Its apiVersion is status.APIVersion.
type clusterStatus struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Driver     string       `json:"driver"`
	Nodes      []nodeStatus `json:"nodes"`
}

// nodeStatus is the status of one node. Without a Report there is a Problem.
type nodeStatus struct {
	Node    string         `json:"node"`
	Plugin  string         `json:"plugin,omitempty"`
	Problem *fleet.Problem `json:"problem,omitempty"`
	// Pods is the number of pods with a volume of the driver on the node that have not ended.
	Pods int `json:"pods"`
	// Missing are the volumes of started pods that the plugin does not report.
	Missing []missingVolume `json:"missing,omitempty"`
	Report  *status.Report  `json:"report,omitempty"`
}

// missingVolume is a volume that a plugin should report.
type missingVolume struct {
	Pod  status.Pod `json:"pod"`
	Name string     `json:"name"`
}

// newClusterStatus sorts the nodes: nodes with a problem first, then by the number of abnormal volumes.
func newClusterStatus(driver string, survey *fleet.Survey) *clusterStatus {
	s := &clusterStatus{APIVersion: status.APIVersion, Kind: clusterStatusKind, Driver: driver, Nodes: []nodeStatus{}}
	for i := range survey.Nodes {
		n := &survey.Nodes[i]
		s.Nodes = append(s.Nodes, nodeStatus{n.Name, n.Plugin, n.Problem, len(n.Pods), missing(n), n.Report})
	}
	slices.SortStableFunc(s.Nodes, func(a, b nodeStatus) int { return cmp.Compare(b.severity(), a.severity()) })
	return s
}

// missing returns the volumes that a node's plugin should report and doesn't. Volumes of pods that have not started don't count, because
// their publish may not have begun.
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

// severity returns a larger number for a node in a worse state.
func (n *nodeStatus) severity() int {
	bad := len(n.Missing)
	if n.Problem != nil {
		bad += 1 << 32
	}
	if n.Report != nil {
		bad += n.Report.Abnormal() + len(n.Report.Refused)
	}
	return bad
}

// keepNamespace removes the volumes of other namespaces. Problems of nodes stay.
func (s *clusterStatus) keepNamespace(namespace string) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.Missing = slices.DeleteFunc(n.Missing, func(m missingVolume) bool { return m.Pod.Namespace != namespace })
		if n.Report != nil {
			n.Report.Volumes = slices.DeleteFunc(n.Report.Volumes, func(v status.Volume) bool { return v.Pod.Namespace != namespace })
			n.Report.Refused = slices.DeleteFunc(n.Report.Refused, func(r status.Refusal) bool { return r.Pod.Namespace != namespace })
			n.Report.Number()
		}
	}
}

// abnormal returns a copy without the volumes that are not abnormal.
func (s *clusterStatus) abnormal() *clusterStatus {
	only := *s
	only.Nodes = slices.Clone(s.Nodes)
	for i := range only.Nodes {
		if r := only.Nodes[i].Report; r != nil {
			kept := *r
			kept.Volumes = slices.DeleteFunc(slices.Clone(r.Volumes), func(v status.Volume) bool { return !v.Abnormal })
			kept.Number()
			only.Nodes[i].Report = &kept
		}
	}
	return &only
}

// pods returns the pods that have the volumes, sorted. A pod whose name is not known is named by its UID.
func (s *clusterStatus) pods() (all []fleet.Object) {
	for i := range s.Nodes {
		if r := s.Nodes[i].Report; r != nil {
			for j := range r.Volumes {
				pod := &r.Volumes[j].Pod
				all = append(all, fleet.Object{Kind: "Pod", Namespace: pod.Namespace, Name: cmp.Or(pod.Name, pod.UID)})
			}
		}
	}
	slices.SortFunc(all, func(a, b fleet.Object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// counts returns the counts of a status. A plugin that is not ready is already a problem of its node.
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

// writeTable writes the nodes with a problem, and then the volumes.
func (s *clusterStatus) writeTable(w io.Writer, table status.Table) error {
	var reports []*status.Report
	var lines [][]string
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Report != nil {
			reports = append(reports, n.Report)
		} else {
			table.Printed.Keep(n.Node)
		}
		for _, problem := range n.problems() {
			line := []string{n.Node, cmp.Or(n.Plugin, "-"), fmt.Sprint(n.Pods), string(problem.Reason), problem.Message}
			id, text := "problem", string(problem.Reason)+problem.Message
			if problem.Reason == fleet.NotReported {
				id += text
			}
			if table.Printed.IsNew(n.Node, id, text) {
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

// problems returns the problems of the node itself, without those of reported volumes.
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

// rows returns the volumes for custom-columns: as in JSON, plus the node.
func (s *clusterStatus) rows() (volumes []*status.Volume, rows []map[string]any, err error) {
	object, err := generic(s)
	if err != nil {
		return nil, nil, err
	}
	rows = []map[string]any{}
	for i := range s.Nodes {
		if r := s.Nodes[i].Report; r != nil {
			for j := range r.Volumes {
				volumes = append(volumes, &r.Volumes[j])
			}
		}
	}
	nodes, _ := object["nodes"].([]any)
	for _, n := range nodes {
		node, _ := n.(map[string]any)
		report, _ := node["report"].(map[string]any)
		reported, _ := report["volumes"].([]any)
		objects, _ := report["objects"].([]any)
		for _, v := range reported {
			if row, ok := v.(map[string]any); ok {
				row["node"] = node["node"]
				expandObjects(row, objects)
				rows = append(rows, row)
			}
		}
	}
	return volumes, rows, nil
}

// expandObjects replaces the indices in a volume's objects by the fields of the object and by the shown version.
func expandObjects(row map[string]any, all []any) {
	named, _ := row["objects"].([]any)
	for _, o := range named {
		fields, _ := o.(map[string]any)
		index, _ := fields["object"].(int64)
		object, _ := all[index].(map[string]any)
		if shown, ok := fields["shown"].(int64); ok {
			versions, _ := object["versions"].([]any)
			fields["shown"] = versions[shown]
		}
		delete(fields, "object")
		for name, value := range object {
			if name != "versions" {
				fields[name] = value
			}
		}
	}
}
