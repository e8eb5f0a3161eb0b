package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// printVerdict writes a verdict in a form of --output. With --watch, several follow each other.
func printVerdict(w io.Writer, output string, v *fleet.Result) error {
	switch output {
	case status.OutputYAML:
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return fmt.Errorf("write the verdict: %w", err)
		}
		return status.Encode(w, output, v)
	case status.OutputJSON:
		return status.Encode(w, output, v)
	}
	var text strings.Builder
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
	fmt.Fprintf(text, "Converged: %s. %s has version %s (UID %s). Volumes that name it and show this version: %d of %d. Nodes asked: %d.\n",
		answer, v.Object, v.Current.ResourceVersion, v.Current.UID, v.Showing, v.Volumes, v.Nodes)
	if v.Opened != nil {
		fmt.Fprintf(text, "Volumes whose files of this version have been opened: %d of %d.\n", *v.Opened, v.Volumes)
	}
	if v.None {
		fmt.Fprintln(text, "No refvol volume shows the object.")
	}
	if v.Changed {
		fmt.Fprintln(text, "The object changed while the plugins were asked.")
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
	describeOthers(text, v)
	fmt.Fprintf(text, "Not covered: %s.\n", strings.Join(v.NotCovered, "; "))
	return nil
}

// describeOthers names what is no laggard, and does not show the version either.
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
	list(text, "Volumes from which the object was withdrawn, as their pods may not have it any more", withdrawn)
	list(text, "Pods that wait on a node without the plugin, so that nothing is mounted for them", without)
	list(text, "Pods whose volumes are not published yet, or wait for something, and that get the current version then", waiting)
}

// list writes a line with a few names, if there are any.
func list(text *strings.Builder, heading string, names []string) {
	const few = 5
	n := len(names)
	if n == 0 {
		return
	}
	if n > few {
		names = append(names[:few:few], fmt.Sprintf("and %d more", n-few))
	}
	fmt.Fprintf(text, "%s: %s.\n", heading, strings.Join(names, ", "))
}

// podName names a pod, if it is known.
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
