package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// The values of --output.
const (
	OutputTable = "table"
	OutputWide  = "wide"
	OutputJSON  = "json"
	OutputYAML  = "yaml"
)

// ValidateOutput refuses a value of --output that there is not.
func ValidateOutput(output string) error {
	if !slices.Contains([]string{OutputTable, OutputWide, OutputJSON, OutputYAML}, output) {
		return fmt.Errorf("--output: Unsupported value: %q: must be %s, %s, %s or %s", output, OutputTable, OutputWide, OutputJSON, OutputYAML)
	}
	return nil
}

// Encode writes a value as JSON or YAML.
func Encode(w io.Writer, output string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err == nil && output == OutputYAML {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("encode the status as %s: %w", output, err)
	}
	return WriteLines(w, string(text))
}

// WriteLines writes a text, each of its lines as by Printable, and ends the last one.
func WriteLines(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return fmt.Errorf("write the status: %w", err)
		}
	}
	return nil
}

// Table says what a table of volumes has.
type Table struct {
	// Wide adds columns, and names all objects.
	Wide bool
	// Nodes adds the column of the node.
	Nodes bool
}

// Write writes the rights that plugins lack, why they aren't ready, the publishes that failed, and the volumes of reports a line each, the
// worst first. Times are ages by the clock of the plugin that reported them.
func (t Table) Write(w io.Writer, reports ...*Report) error {
	var rows []row
	var before strings.Builder
	say := func(format string, args ...any) { fmt.Fprintln(&before, Printable(fmt.Sprintf(format, args...))) }
	for _, r := range reports {
		if len(r.MissingRights) > 0 {
			say("The plugin on %s lacks rights: %s", r.Node, strings.Join(r.MissingRights, ", "))
		}
		for _, condition := range r.NotReady {
			say("The plugin on %s is not ready: %s", r.Node, condition)
		}
		for i := range r.Refused {
			f := &r.Refused[i]
			say("Publish failed %s ago on %s: volume %s of pod %s: %s: %s", duration.HumanDuration(r.ObservedAt.Sub(f.At)), r.Node, f.Name, f.Pod, f.Code, f.Message)
		}
		for i := range r.Volumes {
			rows = append(rows, row{r, &r.Volumes[i]})
		}
	}
	if len(rows) == 0 {
		say("No volumes.")
	}
	if err := WriteLines(w, before.String()); err != nil || len(rows) == 0 {
		return err
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(Compare(a.volume, b.volume), cmp.Compare(a.report.Node, b.report.Node))
	})
	columns := t.columns()
	lines := make([][]string, 1+len(rows))
	for _, c := range columns {
		lines[0] = append(lines[0], c.heading)
		for i, r := range rows {
			lines[1+i] = append(lines[1+i], cmp.Or(c.cell(r), "-"))
		}
	}
	return WriteTable(w, lines)
}

// WriteTable writes lines of cells, which it aligns, each cell as by Printable.
func WriteTable(w io.Writer, lines [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range lines {
		printable := make([]string, len(cells))
		for i, cell := range cells {
			printable[i] = Printable(cell)
		}
		fmt.Fprintln(table, strings.Join(printable, "\t")) //nolint:errcheck // Flush returns it.
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// row is one volume of a table.
type row struct {
	report *Report
	volume *Volume
}

// column is one of a table. Where cell returns "", the table has a dash.
type column struct {
	heading string
	cell    func(row) string
}

// columns returns those of the table. The reason is the last one, as it may be long.
func (t Table) columns() []column {
	columns := []column{{"NORMAL", func(r row) string { return either(r.volume.Unhealthy, "no", "yes") }}}
	if t.Nodes {
		columns = append(columns, column{"NODE", func(r row) string { return r.report.Node }})
	}
	columns = append(columns,
		column{"POD", func(r row) string { return r.volume.Pod.String() }},
		column{"VOLUME", func(r row) string { return r.volume.Name }},
		column{"CONDITION", func(r row) string { return r.volume.Condition }},
		column{"SINCE", func(r row) string { return r.age(r.volume.Since) }},
		column{"PROVEN", row.proven},
		column{"SIZE", func(r row) string { return resource.NewQuantity(r.volume.Bytes, resource.BinarySI).String() }},
	)
	if t.Wide {
		columns = append(columns,
			column{"TOKEN", func(r row) string { return either(r.volume.WithoutToken, "missing", "") }},
			column{"OPENED", row.opened},
			column{"POD-UID", func(r row) string { return r.volume.Pod.UID }},
			column{"VOLUME-ID", func(r row) string { return r.volume.VolumeID }},
		)
	}
	return append(columns,
		column{"OBJECTS", func(r row) string { return r.objects(t.Wide) }},
		column{"REASON", row.reason},
	)
}

// either returns a text for yes, and one for no.
func either(answer bool, yes, no string) string {
	if answer {
		return yes
	}
	return no
}

// opened says whether all shown objects were opened, and of those that were not the least that is known.
func (r row) opened() string {
	worst := ""
	for i := range r.volume.Objects {
		o := &r.volume.Objects[i]
		switch {
		case o.Shown == nil:
		case o.OpenedAt == nil:
			worst = max(worst, cmp.Or(o.Opened, "unsupported")) // of an earlier release
		default:
			worst = cmp.Or(worst, "all")
		}
	}
	if worst == "all" {
		return "yes"
	}
	return worst
}

// String names the pod, by its UID as long as nothing else is known.
func (p Pod) String() string {
	if p.Name == "" {
		return cmp.Or(p.UID, "-")
	}
	return p.Namespace + "/" + p.Name
}

func (r row) age(at time.Time) string { return duration.HumanDuration(r.report.ObservedAt.Sub(at)) }

// proven returns how long ago the object was proven current of which that is longest ago. An object
// that nothing follows needs no proof.
func (r row) proven() string {
	var oldest *time.Time
	for i := range r.volume.Objects {
		switch o := &r.volume.Objects[i]; {
		case !o.Watched:
		case o.LastConfirmed == nil:
			return "never"
		case oldest == nil || o.LastConfirmed.Before(*oldest):
			oldest = o.LastConfirmed
		}
	}
	if oldest == nil {
		return ""
	}
	return r.age(*oldest)
}

// objects lists the volume's objects: a few, or all with their states.
func (r row) objects(wide bool) string {
	const few = 3
	var names []string
	for i := range r.volume.Objects {
		o := &r.volume.Objects[i]
		switch {
		case wide:
			names = append(names, r.object(o)+"("+o.State+")")
		case i == few:
			return strings.Join(names, ",") + fmt.Sprintf(",+%d more", len(r.volume.Objects)-few)
		default:
			names = append(names, r.object(o))
		}
	}
	return strings.Join(names, ",")
}

// object names an object and the version that the files show. Its namespace is there if it is not
// the pod's.
func (r row) object(o *Object) string {
	name := o.Name
	if o.Namespace != r.volume.Pod.Namespace {
		name = o.Namespace + "/" + name
	}
	shown := "-"
	if o.Shown != nil {
		shown = o.Shown.ResourceVersion
	}
	return strings.ToLower(o.Kind) + "/" + name + "@" + shown
}

// worstFirst returns the conditions in the order in which a Report lists volumes. One that this
// release does not know stands before all of them.
func worstFirst() []string {
	return []string{
		"RefForbidden", "VolumeUpdateFailed", "RefDeleted", "RefKeyNotFound", "RefNotFound",
		"Unknown", "Publishing", "Spreading", "Current", "Pinned",
	}
}

// Compare orders volumes: the abnormal ones first, then by how bad the condition is, then by pod and
// volume. Only two reports of one volume are equal.
func Compare(a, b *Volume) int {
	rank := func(v *Volume) int {
		rank := slices.Index(worstFirst(), v.Condition)
		if !v.Unhealthy {
			rank += 1 + len(worstFirst())
		}
		return rank
	}
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		cmp.Compare(a.Condition, b.Condition),
		cmp.Compare(a.Pod.Namespace, b.Pod.Namespace),
		cmp.Compare(a.Pod.Name, b.Pod.Name),
		cmp.Compare(a.Pod.UID, b.Pod.UID),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.VolumeID, b.VolumeID),
	)
}

// Unhealthy returns how many of the volumes are abnormal.
func (r *Report) Unhealthy() int {
	n := 0
	for i := range r.Volumes {
		if r.Volumes[i].Unhealthy {
			n++
		}
	}
	return n
}
