package check

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driver = "csi.refvol.dev"

// add checks one file with the name f.yaml.
func add(t *testing.T, cluster Cluster, text string) *Report {
	t.Helper()
	return checkedBy(t, Options{Cluster: cluster}, text)
}

func checkedBy(t *testing.T, opts Options, text string) *Report {
	t.Helper()
	c := newChecker(t, opts)
	must(t, c.Add(t.Context(), "f.yaml", strings.NewReader(text)))
	return c.Report()
}

func newChecker(t *testing.T, opts Options) *Checker {
	t.Helper()
	opts.Driver, opts.Namespace = cmp.Or(opts.Driver, driver), "ns"
	c, err := New(opts)
	must(t, err)
	return c
}

// written returns a report as text.
func written(t *testing.T, r interface{ WriteText(w io.Writer) error }) string {
	t.Helper()
	var text strings.Builder
	must(t, r.WriteText(&text))
	return text.String()
}

// lines compares texts one by one.
func lines(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("%s: missing %q", what, want[i])
		case i >= len(want):
			t.Errorf("%s: unexpected %q", what, got[i])
		case got[i] != want[i]:
			t.Errorf("%s:\ngot  %q\nwant %q", what, got[i], want[i])
		}
	}
}

func texts[T fmt.Stringer](values []T) []string {
	var all []string
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}

// references returns the paths and objects, one per line.
func references(r *Report) []string {
	var all []string
	for i := range r.Workloads {
		for _, ref := range r.Workloads[i].References {
			s := fmt.Sprintf("%s: %s %s/%s", ref.Field, ref.Kind, ref.Namespace, ref.Name)
			if len(ref.Keys) > 0 {
				s += " " + strings.Join(ref.Keys, ",")
			}
			if ref.Optional {
				s += " optional"
			}
			if ref.Refvol {
				s += " refvol"
			}
			if ref.Via != "" {
				s += " via " + ref.Via
			}
			all = append(all, s)
		}
	}
	return all
}

const podSpec = `{containers: [{name: c, envFrom: [{secretRef: {name: s}}]}], volumes: [{name: v, csi: {driver: csi.refvol.dev, volumeAttributes: {configMap: m, uid: x}}}]}`

// Every kind that has pods is checked, with its own path.
func TestKinds(t *testing.T) {
	for _, test := range []struct{ apiVersion, kind, spec, at string }{
		{"v1", "Pod", "spec: " + podSpec, "spec"},
		{"v1", "PodTemplate", "template: {spec: " + podSpec + "}", "template.spec"},
		{"v1", "ReplicationController", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"apps/v1", "Deployment", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"apps/v1", "StatefulSet", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"apps/v1", "DaemonSet", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"apps/v1", "ReplicaSet", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"batch/v1", "Job", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"batch/v1", "CronJob", "spec: {jobTemplate: {spec: {template: {spec: " + podSpec + "}}}}", "spec.jobTemplate.spec.template.spec"},
	} {
		t.Run(test.kind, func(t *testing.T) {
			r := add(t, nil, fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: w}\n%s\n", test.apiVersion, test.kind, test.spec))
			lines(t, "references", references(r), []string{test.at + ".containers[0].envFrom[0].secretRef.name: Secret ns/s"})
			at := "f.yaml, document 1: " + test.kind + " ns/w: " + test.at + ".volumes[0].csi."
			lines(t, "problems", texts(r.Problems), []string{
				at + "readOnly: Required value: must be true",
				at + `volumeAttributes.uid: Invalid value: "x": must be a decimal number from 0 to 2147483647`,
			})
			if len(r.Workloads) != 1 || r.Workloads[0].Kind != test.kind || r.Workloads[0].ServiceAccount != "default" {
				t.Errorf("workloads = %+v", r.Workloads)
			}
		})
	}
	if n := len(supported()); n != 9 {
		t.Errorf("%d kinds are supported, 9 tested", n)
	}
}

// Other programs read the formats of the report. UPDATE=1 writes the expected files.
func TestReport(t *testing.T) {
	manifests, err := os.ReadFile("testdata/app.yaml")
	must(t, err)
	for name, r := range map[string]*Report{"report": add(t, nil, string(manifests)), "report-live": add(t, shop(), string(manifests))} {
		for golden, got := range map[string]string{name + ".txt": written(t, r), name + ".json": asJSON(t, r)} {
			if os.Getenv("UPDATE") != "" {
				must(t, os.WriteFile("testdata/"+golden, []byte(got), 0o644))
			}
			if want, err := os.ReadFile("testdata/" + golden); err != nil || got != string(want) {
				t.Errorf("%s: %v; got\n%s\nwant\n%s", golden, err, got, want)
			}
		}
	}
}

// No array is null, even in an empty report.
func TestEmptyReportHasNoNull(t *testing.T) {
	for _, text := range []string{"", "apiVersion: v1\nkind: Pod\n"} {
		if got := asJSON(t, add(t, nil, text)); strings.Contains(got, "null") {
			t.Errorf("%q: got %s", text, got)
		}
	}
}

// Text of a manifest must not control a terminal or break the table.
func TestTextIsPrintable(t *testing.T) {
	got := strings.Trim(written(t, add(t, nil, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a\u001b[2J\nproblem: b"}, "spec": {"containers": [{"name": "c\tc", "envFrom": [{"secretRef": {"name": "x\ty\u0007"}}]}]}}`)), "\n")
	if strings.ContainsAny(got, "\x1b\t\a") || strings.Count(got, "\n") != 3 {
		t.Errorf("got %q", got)
	}
}

func asJSON(t *testing.T, r *Report) string {
	t.Helper()
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	must(t, e.Encode(r))
	return text.String()
}

// TestCharts compares the command's output for each manifest. The manifests imitate those of public charts and repositories.
func TestCharts(t *testing.T) {
	files, err := os.ReadDir("testdata/charts")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d manifests, %v", len(files), err)
	}
	var got bytes.Buffer
	for _, file := range files {
		c := newChecker(t, Options{NodeIdentity: true})
		text, err := os.ReadFile(filepath.Join("testdata/charts", file.Name()))
		must(t, err)
		must(t, c.Add(t.Context(), file.Name(), bytes.NewReader(text)))
		got.WriteString("# " + file.Name() + "\n" + written(t, c.Report()) + "\n")
	}
	want, err := os.ReadFile("testdata/charts.txt")
	if err != nil || got.String() != string(want) {
		t.Errorf("%v; got, for testdata/charts.txt:\n%s", err, &got)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
