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
		laggards := status.NewTabWriter(text)
		laggards.Line("NODE", "POD", "VOLUME", "SHOWS", "REASON", "MESSAGE")
		for i := range v.Laggards {
			l := &v.Laggards[i]
			laggards.Line(l.Node, podName(l.Pod), cmp.Or(l.Volume, "-"), shown(l.Shown), string(l.Reason), l.Message)
		}
		if err := laggards.Flush(); err != nil {
			return err
		}
	}
	if n := len(v.NotPublished); n > 0 {
		const few = 5
		var names []string
		for i := range v.NotPublished[:min(few, n)] {
			names = append(names, podName(&v.NotPublished[i].Pod))
		}
		if n > few {
			names = append(names, fmt.Sprintf("and %d more", n-few))
		}
		fmt.Fprintf(text, "Pods whose volumes are not published yet, or wait for something, and that get the current version then: %s.\n", strings.Join(names, ", "))
	}
	fmt.Fprintf(text, "Not covered: %s.\n", strings.Join(v.NotCovered, "; "))
	return nil
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
