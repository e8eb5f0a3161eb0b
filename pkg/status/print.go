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
	// Wide adds columns, and cuts nothing.
	Wide bool
	// Nodes adds the column of the node.
	Nodes bool
}

// Write writes the rights that plugins lack, why they aren't ready, the publishes that failed, and the volumes of reports a line each, the
// worst first. Times are ages by the clock of the plugin that reported them.
func (t Table) Write(w io.Writer, reports ...*Report) error {
	var rows []row
	for _, r := range reports {
		if len(r.MissingRights) > 0 {
			if err := WriteLines(w, fmt.Sprintf("The plugin on %s lacks rights: %s", r.Node, strings.Join(r.MissingRights, ", "))); err != nil {
				return err
			}
		}
		for _, condition := range r.NotReady {
			if err := WriteLines(w, fmt.Sprintf("The plugin on %s is not ready: %s", r.Node, condition)); err != nil {
				return err
			}
		}
		for i := range r.Refused {
			f := &r.Refused[i]
			text := fmt.Sprintf("Publish failed %s ago on %s: volume %s of pod %s: %s: %s", duration.HumanDuration(r.ObservedAt.Sub(f.At)), r.Node, f.Name, f.Pod, f.Code, f.Message)
			if err := WriteLines(w, strings.ReplaceAll(text, "\n", "; ")); err != nil {
				return err
			}
		}
		for i := range r.Volumes {
			rows = append(rows, row{r, &r.Volumes[i]})
		}
	}
	if len(rows) == 0 {
		return WriteLines(w, "No volumes.")
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(Compare(a.volume, b.volume), cmp.Compare(a.report.Node, b.report.Node))
	})
	columns := t.columns()
	table := NewTabWriter(w)
	line := func(cell func(column) string) {
		cells := make([]string, 0, len(columns))
		for _, c := range columns {
			cells = append(cells, cell(c))
		}
		table.Line(cells...)
	}
	line(func(c column) string { return c.heading })
	for _, r := range rows {
		line(func(c column) string { return cmp.Or(c.cell(r), "-") })
	}
	return table.Flush()
}

// TabWriter writes lines of cells, which it aligns. It is not safe for concurrent use.
type TabWriter struct{ w *tabwriter.Writer }

// NewTabWriter returns a TabWriter that writes to w in Flush.
func NewTabWriter(w io.Writer) TabWriter { return TabWriter{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Line adds a line, each cell as by Printable.
func (t TabWriter) Line(cells ...string) {
	for i := range cells {
		cells[i] = Printable(cells[i])
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t")) //nolint:errcheck // Flush returns it.
}

// Flush writes the lines, and returns the first error.
func (t TabWriter) Flush() error {
	if err := t.w.Flush(); err != nil {
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
	columns := []column{{"NORMAL", row.normal}}
	if t.Nodes {
		columns = append(columns, column{"NODE", func(r row) string { return r.report.Node }})
	}
	columns = append(columns,
		column{"POD", func(r row) string { return r.volume.Pod.String() }},
		column{"VOLUME", func(r row) string { return r.volume.Name }},
		column{"CONDITION", func(r row) string { return r.volume.Condition }},
		column{"SINCE", func(r row) string { return r.age(r.volume.Since) }},
		column{"PROVEN", row.proven},
		column{"SIZE", func(r row) string { return quantity(r.volume.Bytes) }},
	)
	if t.Wide {
		return append(columns,
			column{"TOKEN", row.token},
			column{"POD-UID", func(r row) string { return r.volume.Pod.UID }},
			column{"VOLUME-ID", func(r row) string { return r.volume.VolumeID }},
			column{"OBJECTS", row.allObjects},
			column{"REASON", func(r row) string { return r.volume.Reason }},
		)
	}
	return append(columns, column{"OBJECTS", row.someObjects}, column{"REASON", row.shortReason})
}

func (r row) normal() string {
	if r.volume.Unhealthy {
		return "no"
	}
	return "yes"
}

func quantity(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }

func (r row) token() string {
	if r.volume.WithoutToken {
		return "missing"
	}
	return ""
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

// fewObjects is how many objects of a volume a narrow table names, and shortReason how many
// characters of a reason it has.
const (
	fewObjects  = 3
	shortReason = 80
)

func (r row) someObjects() string {
	some := r.volume.Objects[:min(fewObjects, len(r.volume.Objects))]
	names := make([]string, 0, len(some)+1)
	for i := range some {
		names = append(names, r.object(&some[i]))
	}
	return r.join(names)
}

// join returns the names of objects as a list that says how many there are more.
func (r row) join(names []string) string {
	if more := len(r.volume.Objects) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("+%d more", more))
	}
	return strings.Join(names, ",")
}

func (r row) allObjects() string {
	names := make([]string, 0, len(r.volume.Objects))
	for i := range r.volume.Objects {
		o := &r.volume.Objects[i]
		names = append(names, r.object(o)+"("+o.State+")")
	}
	return r.join(names)
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

func (r row) shortReason() string {
	text := []rune(r.volume.Reason)
	if len(text) <= shortReason {
		return r.volume.Reason
	}
	return string(text[:shortReason-3]) + "..."
}
