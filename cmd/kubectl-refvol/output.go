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
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"

	"github.com/refvol/refvol/pkg/status"
)

// output is the flag -o with kubectl's formats and the command's own. Without the flag, the output is for people. It does not use kubectl's
// PrintFlags: a go-template may call any method, so the linker could remove none, and the program would have twice the size.
type output struct {
	*genericclioptions.JSONYamlPrintFlags

	names *genericclioptions.NamePrintFlags
	paths *genericclioptions.JSONPathPrintFlags
	// own are the formats that the command prints itself.
	own   []string
	value string
}

func newOutput(cmd *cobra.Command, own ...string) *output {
	o := &output{
		JSONYamlPrintFlags: genericclioptions.NewJSONYamlPrintFlags(), names: genericclioptions.NewNamePrintFlags(""),
		paths: genericclioptions.NewJSONPathPrintFlags("", true), own: own,
	}
	o.AddFlags(cmd)
	o.paths.TemplateArgument = nil // no flag --template
	o.paths.AddFlags(cmd)
	cmd.Flags().StringVarP(&o.value, "output", "o", o.value, "one of ("+strings.Join(append(own, o.allowed()...), ", ")+")")
	return o
}

func (o *output) format() string { return o.value }

// allowed returns the formats of kubectl's printers.
func (o *output) allowed() []string {
	return slices.Sorted(slices.Values(slices.Concat(o.AllowedFormats(), o.names.AllowedFormats(), o.paths.AllowedFormats())))
}

// printer returns kubectl's printer for the format.
func (o *output) printer() (printers.ResourcePrinter, error) {
	for _, find := range []func(string) (printers.ResourcePrinter, error){o.ToPrinter, o.names.ToPrinter, o.paths.ToPrinter} {
		printer, err := find(o.format())
		switch {
		case err == nil:
			return printer, nil
		case !genericclioptions.IsNoCompatiblePrinterError(err):
			return nil, fmt.Errorf("--output: %w", err)
		}
	}
	return nil, fmt.Errorf("--output: %w", genericclioptions.NoCompatiblePrinterError{OutputFormat: &o.value, AllowedFormats: o.allowed()})
}

// isOwn reports whether no printer of kubectl is needed.
func (o *output) isOwn(own ...string) bool {
	return o.format() == "" || slices.Contains(own, o.format())
}

// validate returns an error for an unknown format.
func (o *output) validate() error {
	name, spec, _ := strings.Cut(o.format(), "=")
	if name == "custom-columns" && strings.Contains(strings.Join(o.own, " "), name) {
		_, _, err := parseColumns(spec)
		return err
	}
	if o.isOwn(o.own...) {
		return nil
	}
	_, err := o.printer()
	return err
}

// write prints a value that has apiVersion and kind with one of kubectl's printers.
func (o *output) write(w io.Writer, value any) error {
	printer, err := o.printer()
	if err != nil {
		return err
	}
	object, err := generic(value)
	if err != nil {
		return err
	}
	return printSafely(w, printer, &unstructured.Unstructured{Object: object})
}

// printSafely prints an object. Text of other plugins must not reach a terminal unchanged.
func printSafely(w io.Writer, printer printers.ResourcePrinter, object *unstructured.Unstructured) error {
	var text bytes.Buffer
	if err := printer.PrintObj(object, &text); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return status.WriteLines(w, text.String())
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

// parseColumns parses the part of custom-columns=NAME:PATH,... after the equals sign.
func parseColumns(spec string) (names []string, paths []*jsonpath.JSONPath, err error) {
	for part := range strings.SplitSeq(spec, ",") {
		name, path, found := strings.Cut(part, ":")
		if !found || name == "" || path == "" {
			return nil, nil, fmt.Errorf("--output: custom-columns: %q is not of the form NAME:PATH", part)
		}
		if !strings.HasPrefix(path, "{") {
			path = "{." + strings.TrimPrefix(path, ".") + "}"
		}
		parser := jsonpath.New(name).AllowMissingKeys(true)
		if err := parser.Parse(path); err != nil {
			return nil, nil, fmt.Errorf("--output: custom-columns: %s: %w", name, err)
		}
		names, paths = append(names, name), append(paths, parser)
	}
	return names, paths, nil
}

// printColumns writes one row for each value. A missing value is <none>, as in kubectl.
func printColumns(w io.Writer, spec string, headers bool, rows []map[string]any) error {
	names, paths, err := parseColumns(spec)
	if err != nil {
		return err
	}
	var lines [][]string
	if headers {
		lines = append(lines, names)
	}
	for _, row := range rows {
		var cells []string
		for _, path := range paths {
			results, err := path.FindResults(row)
			if err != nil {
				return fmt.Errorf("--output: custom-columns: %w", err)
			}
			var values []string
			for _, result := range results {
				for _, value := range result {
					values = append(values, fmt.Sprint(value.Interface()))
				}
			}
			if len(values) == 0 {
				values = []string{"<none>"}
			}
			cells = append(cells, strings.Join(values, ","))
		}
		lines = append(lines, cells)
	}
	return status.WriteTable(w, lines)
}
