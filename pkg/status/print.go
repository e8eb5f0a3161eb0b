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
	// OutputTable is a table.
	OutputTable = ""
	OutputWide  = "wide"
	OutputJSON  = "json"
	OutputYAML  = "yaml"
)

// ValidateOutput returns an error for an unsupported value of --output.
func ValidateOutput(output string) error {
	if !slices.Contains([]string{OutputTable, OutputWide, OutputJSON, OutputYAML}, output) {
		return fmt.Errorf("--output: Unsupported value: %q: must be %s, %s or %s", output, OutputWide, OutputJSON, OutputYAML)
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

// WriteLines writes a text, each line as with Printable, and ends the last line.
func WriteLines(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return fmt.Errorf("write the status: %w", err)
		}
	}
	return nil
}

// Table has the options of a table of volumes.
type Table struct {
	// Wide adds columns and names all objects.
	Wide bool
	// Abnormal leaves out volumes that are not abnormal.
	Abnormal bool
	// NoHeaders leaves out the headings and the last line.
	NoHeaders bool
	// Printed has the lines of the last look, without their ages. If it is not nil, only changed lines are printed. With Abnormal, these
	// include volumes that were repaired since.
	Printed *Printed
	// Compare orders the volumes. nil means the function Compare, and then the nodes.
	Compare func(a, b *Volume) int
}

// Write writes the rights that plugins lack, why they aren't ready, the publishes that failed, the volumes of the reports, one line each,
// worst first, and the counts. Ages are computed with the clock of the plugin that reported them. It ends a look of Printed.
func (t Table) Write(w io.Writer, counts *Counts, reports ...*Report) error {
	defer t.Printed.next()
	var rows []row
	var before strings.Builder
	for _, r := range reports {
		t.writePlugin(&before, r)
		for i := range r.Volumes {
			if v := &r.Volumes[i]; !t.Abnormal || v.Abnormal || t.Printed.had(r.Node, v.VolumeID) {
				rows = append(rows, row{r, v})
			}
		}
	}
	if err := WriteLines(w, before.String()); err != nil {
		return err
	}
	if err := t.writeRows(w, rows); err != nil {
		return err
	}
	if t.NoHeaders {
		return nil
	}
	return WriteLines(w, counts.String())
}

// writePlugin writes the problems of a plugin itself.
func (t Table) writePlugin(w io.Writer, r *Report) {
	say := func(id, format string, args ...any) {
		if t.Printed.IsNew(r.Node, id, "") {
			fmt.Fprintln(w, Printable(fmt.Sprintf(format, args...))) //nolint:errcheck // It is a buffer.
		}
	}
	if len(r.MissingRights) > 0 {
		rights := strings.Join(r.MissingRights, ", ")
		say("lacks "+rights, "The plugin on %s lacks rights: %s", r.Node, rights)
	}
	for _, condition := range r.NotReady {
		say("not ready "+condition, "The plugin on %s is not ready: %s", r.Node, condition)
	}
	for i := range r.Refused {
		f := &r.Refused[i]
		say("refused "+f.VolumeID+f.At.String(), "Publish failed %s ago on %s: volume %s of pod %s: %s: %s", duration.HumanDuration(r.ObservedAt.Sub(f.At)), r.Node, f.Name, f.Pod, f.Code, f.Message)
	}
}

func (t Table) writeRows(w io.Writer, rows []row) error {
	compare := t.Compare
	if compare == nil {
		compare = Compare
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(compare(a.volume, b.volume), cmp.Compare(a.report.Node, b.report.Node))
	})
	columns := t.columns()
	var lines [][]string
	for _, r := range rows {
		var cells []string
		line, node, id := "", r.report.Node, r.volume.VolumeID
		for _, c := range columns {
			cells = append(cells, cmp.Or(c.cell(r), "-"))
			if !c.isAge {
				line += "\n" + c.cell(r)
			}
		}
		if t.Printed.IsNew(node, id, line) {
			lines = append(lines, cells)
		}
		if t.Abnormal && !r.volume.Abnormal {
			t.Printed.forget(node, id)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	if !t.NoHeaders {
		var headings []string
		for _, c := range columns {
			headings = append(headings, c.heading)
		}
		lines = append([][]string{headings}, lines...)
	}
	return WriteTable(w, lines)
}

// WriteTable writes aligned lines of cells, each cell as with Printable.
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

// row is one volume in a table.
type row struct {
	report *Report
	volume *Volume
}

// column is one column of a table. If cell returns "", the table shows a dash.
type column struct {
	heading string
	cell    func(row) string
	// isAge means that the cell changes with time, without an event.
	isAge bool
}

// columns returns the table's columns. The reason is the last one, because it may be long.
func (t Table) columns() []column {
	columns := []column{
		{"NORMAL", func(r row) string { return either(r.volume.Abnormal, "no", "yes") }, false},
		{"NODE", func(r row) string { return r.report.Node }, false},
		{"POD", func(r row) string { return r.volume.Pod.String() }, false},
		{"VOLUME", func(r row) string { return r.volume.Name }, false},
		{"CONDITION", func(r row) string { return r.volume.Condition }, false},
		{"SINCE", func(r row) string { return r.age(r.volume.Since) }, true},
		{"PROVEN", row.proven, true},
		{"SIZE", func(r row) string { return resource.NewQuantity(r.volume.Bytes, resource.BinarySI).String() }, false},
	}
	if t.Wide {
		columns = append(columns,
			column{"TOKEN", func(r row) string { return either(r.volume.WithoutToken, "missing", "") }, false},
			column{"OPENED", row.opened, false},
			column{"POD-UID", func(r row) string { return r.volume.Pod.UID }, false},
			column{"VOLUME-ID", func(r row) string { return r.volume.VolumeID }, false},
		)
	}
	return append(columns,
		column{"OBJECTS", func(r row) string { return r.objects(t.Wide) }, false},
		column{"REASON", row.reason, false},
	)
}

// either returns yes if the answer is true, else no.
func either(answer bool, yes, no string) string {
	if answer {
		return yes
	}
	return no
}

// opened returns "yes" if all shown objects were opened. Otherwise it returns the worst state of an object that was not.
func (r row) opened() string {
	worst := ""
	for i := range r.volume.Objects {
		o := &r.volume.Objects[i]
		switch {
		case o.Shown == nil:
		case o.OpenedAt == nil:
			worst = max(worst, cmp.Or(o.Opened, "unsupported")) // an earlier release does not report it
		default:
			worst = cmp.Or(worst, "all")
		}
	}
	if worst == "all" {
		return "yes"
	}
	return worst
}

// String names the pod. If only its UID is known, it returns the UID.
func (p Pod) String() string {
	if p.Name == "" {
		return cmp.Or(p.UID, "-")
	}
	return p.Namespace + "/" + p.Name
}

func (r row) age(at time.Time) string { return duration.HumanDuration(r.report.ObservedAt.Sub(at)) }

// proven returns how long ago the objects were proven current, for the object with the oldest proof. It ignores objects that nothing
// follows.
func (r row) proven() string {
	var oldest *time.Time
	for i := range r.volume.Objects {
		switch o := &r.volume.Objects[i]; {
		case !o.Followed:
		case o.ProvenAt == nil:
			return "never"
		case oldest == nil || o.ProvenAt.Before(*oldest):
			oldest = o.ProvenAt
		}
	}
	if oldest == nil {
		return ""
	}
	return r.age(*oldest)
}

// objects lists the volume's objects: the first few, or all of them with their states.
func (r row) objects(wide bool) string {
	const few = 3
	var names []string
	for i := range r.volume.Objects {
		o := &r.volume.Objects[i]
		switch {
		case wide:
			names = append(names, r.object(o, true)+"("+o.State+")")
		case i == few:
			return strings.Join(names, ",") + fmt.Sprintf(",+%d more", len(r.volume.Objects)-few)
		default:
			names = append(names, r.object(o, false))
		}
	}
	return strings.Join(names, ",")
}

// object names an object and the version that the files show, with its revision if wide is set. It shows the namespace if that is not the pod's.
func (r row) object(o *VolumeObject, wide bool) string {
	name := o.Name
	if o.Namespace != r.volume.Pod.Namespace {
		name = o.Namespace + "/" + name
	}
	shown := "-"
	if o.Shown != nil {
		shown = o.Shown.ResourceVersion
		if wide && o.Shown.Revision != "" {
			shown += "=" + o.Shown.Revision
		}
	}
	return strings.ToLower(o.Kind) + "/" + name + "@" + shown
}

// conditionOrder returns the conditions in the order in which a Report lists volumes. A condition that this release does not know is sorted
// before all of them.
func conditionOrder() []string {
	return []string{
		"RefForbidden", "VolumeUpdateFailed", "RefDeleted", "RefKeyNotFound", "RefNotFound",
		"Split", "Stale", "Unknown", "Publishing", "Held", "Spreading", "Current", "Pinned",
	}
}

// Compare orders volumes: abnormal ones first, then by condition, worst first, then by pod and volume. Only two reports of one volume are
// equal.
func Compare(a, b *Volume) int {
	rank := func(v *Volume) int {
		rank := slices.Index(conditionOrder(), v.Condition)
		if !v.Abnormal {
			rank += 1 + len(conditionOrder())
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

// Abnormal returns the number of abnormal volumes.
func (r *Report) Abnormal() int {
	n := 0
	for i := range r.Volumes {
		if r.Volumes[i].Abnormal {
			n++
		}
	}
	return n
}
