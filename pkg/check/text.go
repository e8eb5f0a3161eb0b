package check

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/refvol/refvol/pkg/status"
)

// WriteText writes the report for people: a table of the references, one line for each ignored manifest, warning and problem, and a
// summary.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	references, err := r.table(&b)
	if err != nil {
		return err
	}
	for _, at := range r.PassedOver {
		line(&b, "passed over: %s", at)
	}
	for _, f := range r.Warnings {
		line(&b, "warning: %s", f)
	}
	for _, f := range r.Problems {
		line(&b, "problem: %s", f)
	}
	line(&b, "%s, %s, %s, %s", count(len(r.Workloads), "workload"), count(references, "reference"),
		count(len(r.Warnings), "warning"), count(len(r.Problems), "problem"))
	_, err = io.WriteString(w, b.String())
	return err
}

// table writes the references and returns their number.
func (r *Report) table(b *strings.Builder) (int, error) {
	columns := []string{"NAMESPACE", "WORKLOAD", "OBJECT", "KEYS", "OPTIONAL"}
	if r.Live {
		columns = append(columns, "EXISTS", "MAY-GET")
	}
	columns = append(columns, "FIELD") // the longest column, so it needs no padding
	lines := [][]string{columns}
	for i := range r.Workloads {
		w := &r.Workloads[i]
		for j := range w.References {
			lines = append(lines, r.cells(w, &w.References[j]))
		}
	}
	if len(lines) == 1 {
		return 0, nil
	}
	return len(lines) - 1, status.WriteTable(b, append(lines, nil))
}

func (r *Report) cells(w *Workload, ref *Reference) []string {
	field := ref.Field
	if ref.Via != "" {
		field += " > " + ref.Via
	}
	object := strings.ToLower(ref.Kind) + "/" + ref.Name
	if ref.Namespace != w.Namespace {
		object += " (" + ref.Namespace + ")"
	}
	optional := string(No)
	switch {
	case ref.Canary:
		optional = "canary"
	case ref.Optional:
		optional = string(Yes)
	}
	cells := []string{
		w.Namespace, strings.ToLower(w.Kind) + "/" + w.Name, object,
		cmp.Or(strings.Join(ref.Keys, ","), "all"), optional,
	}
	if r.Live {
		exists := string(ref.Exists)
		if len(ref.MissingKeys) > 0 {
			exists += ", but not " + strings.Join(ref.MissingKeys, ",")
		}
		if ref.Share != "" {
			exists += ", for a share of " + ref.Share
		}
		cells = append(cells, exists, string(ref.MayGet))
	}
	return append(cells, field)
}

func line(b *strings.Builder, format string, args ...any) {
	fmt.Fprintln(b, status.Printable(fmt.Sprintf(format, args...)))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// String returns where in the input a manifest is, with its kind and name.
func (p Location) String() string {
	s := p.File
	if p.Document > 0 {
		s += ", document " + strconv.Itoa(p.Document)
	}
	if p.Item > 0 {
		s += ", item " + strconv.Itoa(p.Item)
	}
	if p.Kind == "" {
		return s
	}
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + p.Name
	}
	return strings.TrimRight(s+": "+p.Kind+" "+name, " ")
}

// String returns the issue as one line.
func (f Issue) String() string {
	s := f.Location.String() + ": "
	if f.Field != "" {
		s += f.Field + ": "
	}
	return s + f.Message
}
