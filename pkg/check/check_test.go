package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driver = "csi.refvol.dev"

// add checks one file with the name f.yaml.
func add(t *testing.T, cluster Cluster, text string) *Report {
	t.Helper()
	c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: cluster})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Add(t.Context(), "f.yaml", strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return c.Report()
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
	for _, test := range []struct {
		golden  string
		cluster Cluster
		write   func(*Report, *bytes.Buffer) error
	}{
		{"report.txt", nil, func(r *Report, b *bytes.Buffer) error { return r.WriteText(b) }},
		{"report.json", nil, func(r *Report, b *bytes.Buffer) error { return writeJSON(r, b) }},
		{"report-live.txt", shop(), func(r *Report, b *bytes.Buffer) error { return r.WriteText(b) }},
		{"report-live.json", shop(), func(r *Report, b *bytes.Buffer) error { return writeJSON(r, b) }},
	} {
		t.Run(test.golden, func(t *testing.T) {
			manifests, err := os.ReadFile("testdata/app.yaml")
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := test.write(add(t, test.cluster, string(manifests)), &got); err != nil {
				t.Fatal(err)
			}
			path := "testdata/" + test.golden
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("got\n%s\nwant\n%s", got.Bytes(), want)
			}
		})
	}
}

// No array is null, even in an empty report.
func TestEmptyReportHasNoNull(t *testing.T) {
	for _, text := range []string{"", "apiVersion: v1\nkind: Pod\n"} {
		var b bytes.Buffer
		if err := writeJSON(add(t, nil, text), &b); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "null") {
			t.Errorf("%q: got %s", text, b.String())
		}
	}
}

// Text of a manifest must not control a terminal or break the table.
func TestTextIsPrintable(t *testing.T) {
	r := add(t, nil, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a\u001b[2J\nproblem: b"}, "spec": {"containers": [{"name": "c\tc", "envFrom": [{"secretRef": {"name": "x\ty\u0007"}}]}]}}`)
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if got := strings.Trim(b.String(), "\n"); strings.ContainsAny(got, "\x1b\t\a") || strings.Count(got, "\n") != 3 {
		t.Errorf("got %q", got)
	}
}

func writeJSON(r *Report, w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
