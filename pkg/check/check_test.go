package check

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"

	"github.com/refvol/refvol/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driver = "csi.refvol.dev"

func add(t *testing.T, cluster Cluster, text string) *Report {
	t.Helper()
	return checkedBy(t, Options{Cluster: cluster}, text)
}

func checkedBy(t *testing.T, opts Options, text string) *Report {
	t.Helper()
	c := newChecker(t, opts)
	must.Do(t, c.Add(t.Context(), "f.yaml", strings.NewReader(text)))
	return c.Report()
}

func newChecker(t *testing.T, opts Options) *Checker {
	t.Helper()
	opts.Driver, opts.Namespace = cmp.Or(opts.Driver, driver), "ns"
	return must.Get(New(opts))(t)
}

func written(t *testing.T, r interface{ WriteText(w io.Writer) error }) string {
	t.Helper()
	var text strings.Builder
	must.Do(t, r.WriteText(&text))
	return text.String()
}

func lines(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func texts[T fmt.Stringer](values []T) []string {
	var all []string
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}

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
	notReadOnly := strings.Replace(podSpec, "csi: {", "csi: {readOnly: false, ", 1)
	for _, test := range []struct{ apiVersion, kind, spec, at string }{
		{"v1", "Pod", "spec: " + podSpec, "spec"},
		{"v1", "PodTemplate", "template: {spec: " + podSpec + "}", "template.spec"},
		{"v1", "ReplicationController", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"apps/v1", "Deployment", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"apps/v1", "StatefulSet", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"apps/v1", "DaemonSet", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"apps/v1", "ReplicaSet", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"batch/v1", "Job", "spec: {template: {spec: " + podSpec + "}}", "spec.template.spec"},
		{"batch/v1", "CronJob", "spec: {jobTemplate: {spec: {template: {spec: " + notReadOnly + "}}}}", "spec.jobTemplate.spec.template.spec"},
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
	manifests := must.Get(os.ReadFile("testdata/app.yaml"))(t)
	for name, r := range map[string]*Report{"report": add(t, nil, string(manifests)), "report-live": add(t, shop(), string(manifests))} {
		for golden, got := range map[string]string{name + ".txt": written(t, r), name + ".json": asJSON(t, r)} {
			if os.Getenv("UPDATE") != "" {
				must.Do(t, os.WriteFile("testdata/"+golden, []byte(got), 0o644))
			}
			if want, err := os.ReadFile("testdata/" + golden); err != nil || got != string(want) {
				t.Errorf("%s: %v; got\n%s\nwant\n%s", golden, err, got, want)
			}
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
	must.Do(t, e.Encode(r))
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
		text := must.Get(os.ReadFile(filepath.Join("testdata/charts", file.Name())))(t)
		must.Do(t, c.Add(t.Context(), file.Name(), bytes.NewReader(text)))
		got.WriteString("# " + file.Name() + "\n" + written(t, c.Report()) + "\n")
	}
	want, err := os.ReadFile("testdata/charts.txt")
	if err != nil || got.String() != string(want) {
		t.Errorf("%v; got, for testdata/charts.txt:\n%s", err, &got)
	}
}

func TestManifests(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
	type manifests struct {
		name, text string
		// want are the workloads, what is passed over, and the problems, each after its document.
		want []string
	}
	row := func(name, text string, want ...string) manifests { return manifests{name, text, want} }
	for _, test := range []manifests{
		row("one", pod, "1: Pod ns/p"),
		row("a namespace of its own", "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: q}\n", "1: Pod q/p"),
		row("a generated name", "apiVersion: v1\nkind: Pod\nmetadata: {generateName: p-}\n", "1: Pod ns/p-*"),
		row("JSON", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}`, "1: Pod ns/p"),
		row("empty documents do not count", "# first\n---\n---\n# comment\n---\n"+pod+"--- # and\n"+pod+"---\n", "1: Pod ns/p", "2: Pod ns/p"),
		row("Windows line ends", strings.ReplaceAll(pod+"---\n"+pod, "\n", "\r\n"), "1: Pod ns/p", "2: Pod ns/p"),
		row("other kinds", pod+"---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nunknown: field\n---\napiVersion: example.com/v1\nkind: Deployment\nmetadata: {name: d, namespace: q}\n",
			"1: Pod ns/p", "passed over: 2: Secret s", "passed over: 3: Deployment q/d"),
		row("a list", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- {apiVersion: v1, kind: Service, metadata: {name: b}}\n- {apiVersion: apps/v1, kind: Deployment, metadata: {name: c}, spec: {unknown: x}}\n",
			"1, item 1: Pod ns/a",
			"1, item 3: Deployment ns/c",
			"passed over: 1, item 2: Service b",
			`problem: 1, item 3: Deployment ns/c: unknown field "spec.unknown"`),
		row("a list whose items are none", "apiVersion: v1\nkind: List\nitems: {a: 1}\n", "problem: 1: List: items of a List must be a list"),
		row("JSON objects one after another", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}`+"\n"+`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}}`+"\n---\n"+pod,
			"1: Pod ns/a", "2: Pod ns/b", "3: Pod ns/p"),
		row("lists of a kind, and in lists", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: PodList, items: [{metadata: {name: a}}, {}]}\n- {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: []}]}\n- {apiVersion: v1, kind: Pod, metadata: {name: c}}\n---\napiVersion: apps/v1\nkind: DeploymentList\nitems: [{metadata: {name: d}}]\n---\napiVersion: v1\nkind: SecretList\nitems: [{metadata: {name: e}, data: {}}]\n",
			"1, item 1: Pod ns/a",
			"1, item 2: Pod ns/",
			"1, item 4: Pod ns/c",
			"2, item 1: Deployment ns/d",
			"passed over: 1, item 3: List",
			"passed over: 3, item 1: Secret e"),
		row("kinds that Kubernetes doesn't have", "apiVersion: apps/v1\nkind: Deploymnet\nmetadata: {name: a}\n---\napiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: b}\n---\napiVersion: v1\nkind: pod\n---\napiVersion: policy/v1beta1\nkind: PodSecurityPolicy\n",
			"problem: 1: Deploymnet a: there is no such kind in apps/v1: it is misspelled, or was removed from Kubernetes",
			"problem: 2: Ingress b: apiVersion extensions/v1beta1 was removed from Kubernetes: use the kind's own group, such as apps/v1",
			"problem: 3: pod: there is no such kind in v1: it is misspelled, or was removed from Kubernetes",
			"problem: 4: PodSecurityPolicy: there is no such kind in policy/v1beta1: it is misspelled, or was removed from Kubernetes"),
		row("kinds of others", "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: a}\nspec: {strategy: {}, template: {spec: {containers: [{name: c}], more: 1}}}\n---\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: b}\n---\napiVersion: example.com/v1\nkind: Basket\nmetadata: {name: c}\nspec: {template: {spec: text}}\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: d}\n",
			"1: Rollout ns/a",
			"passed over: 2: VolumeSnapshot b",
			"passed over: 3: Basket c",
			"passed over: 4: Ingress d"),
		row("an empty list", "apiVersion: v1\nkind: List\nitems: []\n", "passed over: 1: List"),
		row("nothing", "# nothing\n", "problem: f.yaml: holds no manifest"),
		row("broken ones between good ones", pod+"---\n- a\n---\n}\n---\nkind: Pod\n---\napiVersion: a/b/c\nkind: Pod\n---\n"+pod,
			"1: Pod ns/p",
			"6: Pod ns/p",
			"problem: 2: is not a manifest: must not be of type array",
			"problem: 3: is not a manifest: not YAML or JSON",
			"problem: 4: Pod: has no apiVersion and kind",
			"problem: 5: Pod: apiVersion is not of the form group/version"),
		row("an item that is none", "apiVersion: v1\nkind: List\nitems: [5]\n", "problem: 1, item 1: is not a manifest: must not be of type number"),
		row("a list with a field twice", "apiVersion: v1\nkind: List\nitems: []\nitems: [{apiVersion: v1, kind: Pod}]\n",
			"problem: 1: List: is not a manifest: not YAML or JSON in line 4"),
		row("a separator with more", pod+"--- {a: b}\n"+pod, "problem: 1: is not a manifest: only a comment may follow ---"),
		row("unknown and repeated fields", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {volume: []}\nspec: {volumes: []}\n",
			"1: Pod ns/p", `problem: 1: Pod ns/p: yaml: unmarshal errors: line 5: key "spec" already set in map`),
		row("a wrong type", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {volumes: 5}\n",
			"problem: 1: Pod ns/p: json: cannot unmarshal number into Go struct field PodSpec.spec.volumes of type []v1.Volume"),
		row("versions that no API server has", "apiVersion: apps/v1beta2\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: c}\n",
			"problem: 1: Deployment d: apiVersion apps/v1beta2 is not supported; use apps/v1",
			"problem: 2: CronJob c: apiVersion batch/v1beta1 is not supported; use batch/v1"),
		row("a controller without a template", "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: r}\n",
			"problem: 1: ReplicationController ns/r: has no pod template"),
	} {
		t.Run(test.name, func(t *testing.T) {
			r := add(t, nil, test.text)
			var got []string
			for i := range r.Workloads {
				got = append(got, r.Workloads[i].Location.String())
			}
			for _, location := range r.PassedOver {
				got = append(got, "passed over: "+location.String())
			}
			for _, problem := range r.Problems {
				got = append(got, "problem: "+problem.String())
			}
			for i := range got {
				got[i] = strings.Replace(got[i], "f.yaml, document ", "", 1)
			}
			lines(t, "manifests", got, test.want)
			lines(t, "warnings", texts(r.Warnings), nil)
			if text := asJSON(t, r); strings.Contains(text, "null") {
				t.Errorf("an array is null in %s", text)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	c := newChecker(t, Options{})
	for _, name := range []string{"a", "b"} {
		must.Do(t, c.Add(t.Context(), name, strings.NewReader("apiVersion: v1\nkind: Pod\n")))
	}
	if w := c.Report().Workloads; len(w) != 2 || w[0].File != "a" || w[1].File != "b" || w[1].Document != 1 {
		t.Errorf("got %+v", w)
	}
	if err := c.Add(t.Context(), "f", iotest.ErrReader(errors.New("broken disk"))); err == nil || err.Error() != "read f: broken disk" {
		t.Errorf("got %v", err)
	}
	const separator = "--- x\n" // is wrong, so that the rest is not parsed
	larger := strings.NewReader(separator + strings.Repeat("x", maxFileSize-len(separator)+1))
	if err := c.Add(t.Context(), "f", larger); err == nil || err.Error() != "read f: has more than 32 MiB" {
		t.Errorf("a larger file: %v", err)
	}
	must.Do(t, c.Add(t.Context(), "f", strings.NewReader(separator+strings.Repeat("x", maxFileSize-len(separator)))))
}

// A file may hold Secrets beside the workloads. Problems with them are reported without their values.
func TestNoValueIsRepeated(t *testing.T) {
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
	for _, text := range []string{
		secret + "stringData: {k: hunter2}\n",
		secret + "stringData: {k: *hunter2}\n",
		secret + "stringData: {k: \"hunter2\n",
		secret + "stringData:\n  k: hunter2: hunter2\n",
		secret + "stringData: hunter2\n hunter2\n",
		secret + "stringData: {k: !hunter2 x}\n",
		secret + "stringData: {k: %hunter2}\n",
		secret + "---hunter2\n",
		"--- hunter2\n",
		"hunter2\n",
		"'hunter2'\n",
		"[hunter2, {",
		"apiVersion: {hunter2: hunter2}\nkind: Secret\n",
		"apiVersion: v1\nkind: Secret\nmetadata: hunter2\n",
		"apiVersion: v1\nkind: List\nitems: hunter2\n",
		secret + "stringData: {k: {{ hunter2 }}}\n",
		secret + "stringData:\n  ? {\"a\\\"hunter2 x\": 1}\n  : b\n",
		secret + "stringData: {{\"yaml: line 48151623: x\": 1}: 2}\n",
		secret + "stringData: {k: {{ 48151623 }}}\n",
		"apiVersion: v1\nkind: List\nitems: [hunter2]\n",
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, data: {hunter2: a, hunter2: b}}\n",
	} {
		r := add(t, nil, text)
		if got := written(t, r) + asJSON(t, r); strings.Contains(got, "hunter2") || strings.Contains(got, "48151623") {
			t.Errorf("%q: got %s", text, got)
		}
	}
}

// Whatever follows a manifest in a file is checked, or reported as not checked.
func TestManifestsThatAreNotSeparated(t *testing.T) {
	const (
		configMap = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}`
		pod       = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}`
	)
	for _, text := range []string{
		configMap + "\n...\n" + pod,
		"~\n...\n" + pod, "--- # empty\n~\n...\n" + pod,
		"  apiVersion: v1\n  kind: ConfigMap\napiVersion: v1\nkind: Pod\n",
		configMap + "\n}\n",
	} {
		r := add(t, nil, text)
		if len(r.Problems) != 1 || !strings.Contains(fmt.Sprint(r.Problems[0]), "is followed by another manifest that is not separated from it by ---") {
			t.Errorf("%s: problems are %v", text, r.Problems)
		}
	}
	const foreign = "apiVersion: example.com/v1\nkind: Basket\nitems: " // its fields are not judged
	for _, text := range []string{
		"apiVersion: v1\nkind: List\n", foreign + "{a: 1}\n", foreign + "text\n", foreign + "[1]\n", foreign + "~\n", configMap + "\n...\n", "~\n...\n---\n" + pod, configMap + "\n---\n" + pod, "# c\n" + pod + "\n# d\n",
	} {
		if r := add(t, nil, text); len(r.Problems) != 0 {
			t.Errorf("%s: problems are %v", text, r.Problems)
		}
	}
	// A rest that cannot be parsed is a rest too.
	r := add(t, nil, configMap+"\n}'\n"+pod)
	lines(t, "problems", texts(r.Problems), []string{"f.yaml, document 1: is not a manifest: not YAML or JSON in line 2"})
}
