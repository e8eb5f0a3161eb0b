package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// resultListKind is the kind of a list of Results.
const resultListKind = "ConvergenceList"

// resultList is what converged prints for several objects.
type resultList struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Items      []*fleet.Result `json:"items"`
}

// print writes results in the format of -o. With --watch, several follow each other.
func (o *convergedOptions) print(w io.Writer, results []*fleet.Result) error {
	if o.output.isText() {
		for _, v := range results {
			if err := printVerdict(w, o.watch, v); err != nil {
				return err
			}
		}
		return nil
	}
	if o.output.format() == outputName {
		var objects []fleet.Object
		for _, v := range results {
			objects = append(objects, v.Object)
		}
		return writeNames(w, objects, false)
	}
	if len(results) == 1 {
		return o.output.write(w, results[0])
	}
	return o.output.write(w, &resultList{status.APIVersion, resultListKind, results})
}

// notCovered is the documentation of what success does not cover.
const notCovered = "https://github.com/refvol/refvol/blob/main/docs/status.md#what-success-does-not-cover"

// printVerdict writes a result for people.
func printVerdict(w io.Writer, withTime bool, v *fleet.Result) error {
	var text strings.Builder
	if withTime {
		fmt.Fprintf(&text, "%s ", v.ObservedAt.Format(time.RFC3339))
	}
	if v.Current == nil {
		fmt.Fprintf(&text, "%s does not exist: it was deleted, or never created.\n", v.Object)
	} else if err := describe(&text, v); err != nil {
		return err
	}
	return status.WriteLines(w, text.String())
}

func describe(text *strings.Builder, v *fleet.Result) error {
	answer := "no"
	if v.Converged {
		answer = "yes"
	}
	fmt.Fprintf(text, "Converged: %s. %s has version %s. Volumes that name it and show this version: %d of %d. Nodes asked: %d.\n",
		answer, v.Object, v.Current.ResourceVersion, v.Showing, v.Volumes-v.NotForPod, v.Nodes)
	if v.NotForPod > 0 {
		fmt.Fprintf(text, "Volumes in which it is a canary that does not exist for the pod at this version: %d.\n", v.NotForPod)
	}
	if v.HasOtherRevision() {
		fmt.Fprintf(text, "The object has the revision %q, not %q (annotation %s).\n", v.Revision, v.WantedRevision, volume.RevisionAnnotation)
	}
	if v.None {
		fmt.Fprintln(text, "No refvol volume shows the object.")
	}
	if len(v.Laggards) > 0 {
		lines := [][]string{{"NODE", "POD", "VOLUME", "SHOWS", "REASON", "MESSAGE"}}
		for i := range v.Laggards {
			l := &v.Laggards[i]
			lines = append(lines, []string{l.Node, podName(l.Pod), cmp.Or(l.Volume, "-"), shown(l.Shown), string(l.Reason), l.Message})
		}
		if err := status.WriteTable(text, lines); err != nil {
			return err
		}
	}
	if v.Opened != nil {
		fmt.Fprintf(text, "Volumes whose files of this version have been opened: %d of %d.\n", *v.Opened, v.Volumes-v.NotForPod)
	}
	if v.Changed {
		fmt.Fprintln(text, "The object changed while the plugins were asked.")
	}
	describeOthers(text, v)
	native := "native references"
	if v.Opened != nil {
		native += " (variables of pods with the label refvol.dev/restart are covered)"
	}
	fmt.Fprintf(text, "Not covered: %s, subPath mounts, applications: %s\n", native, notCovered)
	return nil
}

// describeOthers lists what does not show the version but is no laggard.
func describeOthers(text *strings.Builder, v *fleet.Result) {
	var withdrawn, without, waiting []string
	for i := range v.Withdrawn {
		withdrawn = append(withdrawn, fmt.Sprintf("volume %s of %s", v.Withdrawn[i].Volume, v.Withdrawn[i].Pod))
	}
	for i := range v.WithoutPlugin {
		without = append(without, v.WithoutPlugin[i].String())
	}
	for i := range v.NotPublished {
		waiting = append(waiting, v.NotPublished[i].String())
	}
	list(text, "Volumes from which the object was withdrawn, because their pods may not have it any more", withdrawn)
	list(text, "Pods that wait on a node without the plugin, so that nothing is mounted for them", without)
	list(text, "Pods whose volumes are not published yet, or wait for something, and that get the current version then", waiting)
}

// list writes a line with the first few names, if there are any.
func list(text *strings.Builder, heading string, names []string) {
	if len(names) > 0 {
		fmt.Fprintf(text, "%s: %s.\n", heading, few(names))
	}
}

// few joins the first few names, and says how many more there are.
func few(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		names = append(names[:most:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// blockers returns one line about what prevents success.
func blockers(results []*fleet.Result) string {
	const few = 3
	var parts []string
	for _, v := range results {
		if v.Converged || v.Current == nil {
			continue
		}
		part := fmt.Sprintf("%s: version %s is in %d of %d volumes", v.Object, v.Current.ResourceVersion, v.Showing, v.Volumes-v.NotForPod)
		if v.HasOtherRevision() {
			part += fmt.Sprintf(", it has the revision %q, not %q", v.Revision, v.WantedRevision)
		}
		if v.Opened != nil {
			part += fmt.Sprintf(", opened in %d", *v.Opened)
		}
		var names []string
		for i := range v.Laggards {
			l := &v.Laggards[i]
			name := l.Node
			if l.Pod != nil {
				name = l.Pod.String()
			}
			names = append(names, name+" "+string(l.Reason))
		}
		if n := len(names); n > few {
			names = append(names[:few], fmt.Sprintf("%d more", n-few))
		}
		if len(names) > 0 {
			part += ": " + strings.Join(names, ", ")
		}
		parts = append(parts, part)
	}
	return status.Printable("Waiting for " + strings.Join(parts, "; "))
}

// podName returns a pod's name, or - if it is not known.
func podName(pod *status.Pod) string {
	if pod == nil {
		return "-"
	}
	return pod.String()
}

func shown(v *status.Version) string {
	if v == nil {
		return "-"
	}
	return v.ResourceVersion
}
