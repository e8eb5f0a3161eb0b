package check

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/status"
)

const (
	// labelReportKind is the kind of a LabelReport. Its apiVersion is status.APIVersion.
	labelReportKind = "LabelReport"
	// mostNodes is how many names of nodes the text has.
	mostNodes = 10
)

// LabelReport says what a label would change in the pods of a namespace, once they are replaced. In JSON every field is always present, and
// no array is null.
type LabelReport struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Label      string `json:"label"`
	// Policy says whether the policy of the label is installed. It is asked only if no pod would change.
	Policy Answer     `json:"policy"`
	Pods   []LabelPod `json:"pods"`
	// OldNodes are the nodes on which pods that restart in place don't start. NodesUnread means that the caller may not list nodes.
	OldNodes    []Node `json:"oldNodes"`
	NodesUnread bool   `json:"nodesUnread"`
}

// LabelPod is a pod, or several pods of one owner that are alike.
type LabelPod struct {
	Name string `json:"name"`
	// Owner is the pods' controller, or "". Replicas is the number of pods.
	Owner    string `json:"owner"`
	Replicas int    `json:"replicas"`
	// Changed are the native volumes that a volume of the driver would show, or the sidecar that would be added.
	Changed []string `json:"changed"`
	// Stays is what the label could change, but doesn't: native volumes, or variables and volumes that no sidecar follows.
	Stays []string `json:"stays"`
	// Problems say why the pod could not start.
	Problems []string `json:"problems"`
	// NotKnown says why the API server refuses the pod also without the label, or is "".
	NotKnown string `json:"notKnown"`
	// Unread are the objects that the caller may not read, so that their sizes are not known.
	Unread []string `json:"unread"`
}

func newLabelPod(p *corev1.Pod) LabelPod {
	one := LabelPod{Name: p.Name, Replicas: 1, Changed: []string{}, Stays: []string{}, Problems: []string{}, Unread: []string{}}
	if owner := metav1.GetControllerOf(p); owner != nil {
		one.Owner = owner.Kind + "/" + owner.Name
	}
	return one
}

// CannotStart returns the number of pods that could not start.
func (r *LabelReport) CannotStart() int {
	return r.number(func(p *LabelPod) bool { return len(p.Problems) > 0 })
}

// NotKnown returns the number of pods of which the API server did not say what the label changes. If the policy is not installed, it is the
// number of all pods.
func (r *LabelReport) NotKnown() int {
	return r.number(func(p *LabelPod) bool { return p.NotKnown != "" || r.Policy == No })
}

func (r *LabelReport) number(has func(p *LabelPod) bool) (n int) {
	for i := range r.Pods {
		if has(&r.Pods[i]) {
			n += r.Pods[i].Replicas
		}
	}
	return n
}

// isUnchanged reports whether nothing shows that the policy is installed.
func (r *LabelReport) isUnchanged() bool {
	return !slices.ContainsFunc(r.Pods, func(p LabelPod) bool { return len(p.Changed)+len(p.Problems) > 0 })
}

// WriteText writes the report for people.
func (r *LabelReport) WriteText(w io.Writer) error {
	var b strings.Builder
	lines := [][]string{{"POD", "OWNER", "PODS", "CHANGES"}}
	for i := range r.Pods {
		if p := &r.Pods[i]; len(p.Changed) > 0 {
			lines = append(lines, []string{p.Name, cmp.Or(p.Owner, "-"), fmt.Sprint(p.Replicas), strings.Join(p.Changed, ",")})
		}
	}
	if len(lines) > 1 {
		if err := status.WriteTable(&b, append(lines, nil)); err != nil {
			return err
		}
	}
	stays := "stays native"
	if r.Label == RestartLabel {
		stays = "stays as it is written"
	}
	r.each(&b, stays, func(p *LabelPod) []string {
		if len(p.Stays) == 0 {
			return nil
		}
		return []string{strings.Join(p.Stays, ", ")}
	})
	r.writeNodes(&b)
	r.writePolicy(&b)
	r.each(&b, "size not known", func(p *LabelPod) (texts []string) {
		for _, object := range p.Unread {
			texts = append(texts, "you may not get "+object)
		}
		return texts
	})
	r.each(&b, "not known", func(p *LabelPod) []string {
		if p.NotKnown == "" {
			return nil
		}
		return []string{"also refused without the label: " + p.NotKnown}
	})
	r.each(&b, "could not start", func(p *LabelPod) []string { return p.Problems })
	line(&b, "%s in namespace %s: %d would change, %d could not start, %d not known", count(r.number(func(*LabelPod) bool { return true }), "pod"), r.Namespace,
		r.number(func(p *LabelPod) bool { return len(p.Changed) > 0 }), r.CannotStart(), r.NotKnown())
	_, err := io.WriteString(w, b.String())
	return err
}

// each writes a line for each text of each pod.
func (r *LabelReport) each(b *strings.Builder, what string, texts func(p *LabelPod) []string) {
	for i := range r.Pods {
		for _, text := range texts(&r.Pods[i]) {
			line(b, "%s: pod %s: %s", what, r.Pods[i].Name, text)
		}
	}
}

func (r *LabelReport) writeNodes(b *strings.Builder) {
	if r.NodesUnread {
		line(b, "nodes not known: you may not list nodes, and on those older than %s pods with the sidecar stay Pending", restartSince)
	}
	var names []string
	for _, node := range r.OldNodes[:min(len(r.OldNodes), mostNodes)] {
		names = append(names, node.Name+" ("+node.Kubelet+")")
	}
	if more := len(r.OldNodes) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	if len(names) > 0 {
		line(b, "warning: no pod with the sidecar can run on nodes older than %s: %s", restartSince, strings.Join(names, ", "))
	}
}

func (r *LabelReport) writePolicy(b *strings.Builder) {
	switch name := policyOf(r.Label); {
	case r.Policy == No:
		line(b, "not known: the component is not installed: there is no MutatingAdmissionPolicy %s", name)
	case r.Policy == Unknown:
		line(b, "no pod would change: the component may not be installed, and you may not get MutatingAdmissionPolicy %s", name)
	case r.isUnchanged() && len(r.Pods) > 0:
		line(b, "no pod would change, although MutatingAdmissionPolicy %s is installed", name)
	}
}
