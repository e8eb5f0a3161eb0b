package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/cmd/get"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// outputWide and outputName are values of -o.
const (
	outputWide = "wide"
	outputName = "name"
)

// output is the flag -o with the formats and the printers of kubectl get. Without the flag, the output is for people.
type output struct {
	*get.PrintFlags

	allowed []string
	// printer is made once, because it separates documents and prints headings once.
	printer printers.ResourcePrinter
}

// newOutput adds the flags of the output. own are the formats that only some commands have: wide and name.
func newOutput(cmd *cobra.Command, own ...string) *output {
	o := &output{PrintFlags: get.NewGetPrintFlags()}
	o.allowed = slices.Concat(own, o.JSONYamlPrintFlags.AllowedFormats(), o.TemplateFlags.AllowedFormats(), o.CustomColumnsFlags.AllowedFormats())
	slices.Sort(o.allowed)
	o.JSONYamlPrintFlags.AddFlags(cmd)
	o.TemplateFlags.AddFlags(cmd)
	cmd.Flags().BoolVar(o.NoHeaders, "no-headers", false, "If true, tables have no headings and no last line that counts.")
	cmd.Flags().StringVarP(o.OutputFormat, "output", "o", "", "The output format of kubectl get, such as "+strings.Join(slices.Concat(own, []string{"json", "jsonpath"}), ", ")+". The default is a text.")
	return o
}

// format returns the name of the format, or "" for a text.
func (o *output) format() string {
	name, _, _ := strings.Cut(*o.OutputFormat, "=")
	if name == "" && *o.TemplateFlags.TemplateArgument != "" {
		return "go-template"
	}
	return name
}

// isText reports whether the output is for people.
func (o *output) isText() bool { return o.format() == "" || o.format() == outputWide }

// isRows reports whether the output has a line for each element of a list.
func (o *output) isRows() bool { return o.isText() || strings.HasPrefix(o.format(), "custom-columns") }

// validate returns an error for an unknown format.
func (o *output) validate() (err error) {
	if o.format() != "" && !slices.Contains(o.allowed, o.format()) {
		return fmt.Errorf("--output: %w", genericclioptions.NoCompatiblePrinterError{OutputFormat: o.OutputFormat, AllowedFormats: o.allowed})
	}
	if o.isText() {
		return nil
	}
	if o.printer, err = o.ToPrinter(); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// write prints a value with one of kubectl's printers. Text of other plugins must not reach a terminal unchanged, and the text of a template
// must.
func (o *output) write(w io.Writer, value any) error {
	fields, err := generic(value)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(o.format(), "custom-columns") && !slices.Contains(o.TemplateFlags.AllowedFormats(), o.format()) || o.format() == "jsonpath-as-json" {
		var text bytes.Buffer
		if err := o.printer.PrintObj(&unstructured.Unstructured{Object: fields}, &text); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		return status.WriteLines(w, text.String())
	}
	makePrintable(fields)
	if err := o.printer.PrintObj(listOf(fields), w); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// writeNames prints objects as kubectl does, each once, and with withNamespace also the flag for its namespace.
func writeNames(w io.Writer, objects []fleet.Object, withNamespace bool) error {
	lines := map[string]bool{}
	for _, o := range objects {
		object, flag := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": o.Kind}}, ""
		object.SetName(status.Printable(o.Name))
		if withNamespace && o.Namespace != "" {
			flag = "--namespace=" + status.Printable(o.Namespace)
		}
		var line bytes.Buffer
		if err := (&printers.NamePrinter{Operation: flag}).PrintObj(object, &line); err != nil {
			return fmt.Errorf("print the name of %s: %w", o, err)
		}
		if lines[line.String()] {
			continue
		}
		lines[line.String()] = true
		if _, err := line.WriteTo(w); err != nil {
			return fmt.Errorf("print the name of %s: %w", o, err)
		}
	}
	return nil
}

// generic returns a value in its JSON form. Integers stay integers.
func generic(value any) (map[string]any, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return object.Object, nil
}

// listOf returns an object in the form that printers take: as a list if it has items.
func listOf(object map[string]any) runtime.Object {
	items, ok := object["items"].([]any)
	if !ok {
		return &unstructured.Unstructured{Object: object}
	}
	list := &unstructured.UnstructuredList{Object: object}
	for _, item := range items {
		if fields, ok := item.(map[string]any); ok {
			list.Items = append(list.Items, unstructured.Unstructured{Object: fields})
		}
	}
	return list
}

// makePrintable makes all texts of a JSON value printable.
func makePrintable(value any) any {
	switch value := value.(type) {
	case string:
		return status.Printable(value)
	case map[string]any:
		for name := range value {
			value[name] = makePrintable(value[name])
		}
	case []any:
		for i := range value {
			value[i] = makePrintable(value[i])
		}
	}
	return value
}

// sortedBy returns the order of rows by a field, as kubectl sorts: the place of the first row, and so on.
func sortedBy(field string, rows []map[string]any) ([]int, error) {
	objects := make([]runtime.Object, len(rows))
	for i := range rows {
		objects[i] = &unstructured.Unstructured{Object: rows[i]}
	}
	order := make([]int, len(rows))
	if len(rows) == 0 {
		return order, nil
	}
	sorted, err := get.SortObjects(nil, objects, field)
	if err != nil {
		return nil, fmt.Errorf("--sort-by: %w", err)
	}
	for i := range order {
		order[i] = sorted.OriginalPosition(i)
	}
	return order, nil
}
