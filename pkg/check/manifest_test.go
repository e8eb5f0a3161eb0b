package check

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"
)

func TestManifests(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
	for _, test := range []struct {
		name, text                      string
		workloads, passedOver, problems []string
	}{
		{name: "one", text: pod, workloads: []string{"f.yaml, document 1: Pod ns/p"}},
		{name: "a namespace of its own", text: "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: q}\n", workloads: []string{"f.yaml, document 1: Pod q/p"}},
		{name: "a generated name", text: "apiVersion: v1\nkind: Pod\nmetadata: {generateName: p-}\n", workloads: []string{"f.yaml, document 1: Pod ns/p-*"}},
		{name: "JSON", text: `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}`, workloads: []string{"f.yaml, document 1: Pod ns/p"}},
		{
			name: "empty documents do not count", text: "# first\n---\n---\n# comment\n---\n" + pod + "--- # and\n" + pod + "---\n",
			workloads: []string{"f.yaml, document 1: Pod ns/p", "f.yaml, document 2: Pod ns/p"},
		},
		{name: "Windows line ends", text: strings.ReplaceAll(pod+"---\n"+pod, "\n", "\r\n"), workloads: []string{"f.yaml, document 1: Pod ns/p", "f.yaml, document 2: Pod ns/p"}},
		{
			name: "other kinds", text: pod + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nunknown: field\n---\napiVersion: example.com/v1\nkind: Deployment\nmetadata: {name: d, namespace: q}\n",
			workloads:  []string{"f.yaml, document 1: Pod ns/p"},
			passedOver: []string{"f.yaml, document 2: Secret s", "f.yaml, document 3: Deployment q/d"},
		},
		{
			name: "a list", text: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- {apiVersion: v1, kind: Service, metadata: {name: b}}\n- {apiVersion: apps/v1, kind: Deployment, metadata: {name: c}, spec: {unknown: x}}\n",
			workloads:  []string{"f.yaml, document 1, item 1: Pod ns/a", "f.yaml, document 1, item 3: Deployment ns/c"},
			passedOver: []string{"f.yaml, document 1, item 2: Service b"},
			problems:   []string{`f.yaml, document 1, item 3: Deployment ns/c: unknown field "spec.unknown"`},
		},
		{name: "a list whose items are none", text: "apiVersion: v1\nkind: List\nitems: {a: 1}\n", problems: []string{"f.yaml, document 1: List: items of a List must be a list"}},
		{
			name: "JSON objects one after another", text: `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}` + "\n" + `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}}` + "\n---\n" + pod,
			workloads: []string{"f.yaml, document 1: Pod ns/a", "f.yaml, document 2: Pod ns/b", "f.yaml, document 3: Pod ns/p"},
		},
		{
			name: "lists of a kind, and in lists", text: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: PodList, items: [{metadata: {name: a}}, {}]}\n- {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: []}]}\n- {apiVersion: v1, kind: Pod, metadata: {name: c}}\n---\napiVersion: apps/v1\nkind: DeploymentList\nitems: [{metadata: {name: d}}]\n---\napiVersion: v1\nkind: SecretList\nitems: [{metadata: {name: e}, data: {}}]\n",
			workloads:  []string{"f.yaml, document 1, item 1: Pod ns/a", "f.yaml, document 1, item 2: Pod ns/", "f.yaml, document 1, item 4: Pod ns/c", "f.yaml, document 2, item 1: Deployment ns/d"},
			passedOver: []string{"f.yaml, document 1, item 3: List", "f.yaml, document 3, item 1: Secret e"},
		},
		{
			name: "kinds that Kubernetes doesn't have", text: "apiVersion: apps/v1\nkind: Deploymnet\nmetadata: {name: a}\n---\napiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: b}\n---\napiVersion: v1\nkind: pod\n---\napiVersion: policy/v1beta1\nkind: PodSecurityPolicy\n",
			problems: []string{
				"f.yaml, document 1: Deploymnet a: there is no such kind in apps/v1: it is misspelled, or was removed from Kubernetes",
				"f.yaml, document 2: Ingress b: apiVersion extensions/v1beta1 was removed from Kubernetes: use the kind's own group, such as apps/v1",
				"f.yaml, document 3: pod: there is no such kind in v1: it is misspelled, or was removed from Kubernetes",
				"f.yaml, document 4: PodSecurityPolicy: there is no such kind in policy/v1beta1: it is misspelled, or was removed from Kubernetes",
			},
		},
		{
			name: "kinds of others", text: "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: a}\nspec: {strategy: {}, template: {spec: {containers: [{name: c}], more: 1}}}\n---\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: b}\n---\napiVersion: example.com/v1\nkind: Basket\nmetadata: {name: c}\nspec: {template: {spec: text}}\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: d}\n",
			workloads:  []string{"f.yaml, document 1: Rollout ns/a"},
			passedOver: []string{"f.yaml, document 2: VolumeSnapshot b", "f.yaml, document 3: Basket c", "f.yaml, document 4: Ingress d"},
		},
		{name: "an empty list", text: "apiVersion: v1\nkind: List\nitems: []\n", passedOver: []string{"f.yaml, document 1: List"}},
		{name: "nothing", text: "# nothing\n", problems: []string{"f.yaml: holds no manifest"}},
		{
			name: "broken ones between good ones", text: pod + "---\n- a\n---\n}\n---\nkind: Pod\n---\napiVersion: a/b/c\nkind: Pod\n---\n" + pod,
			workloads: []string{"f.yaml, document 1: Pod ns/p", "f.yaml, document 6: Pod ns/p"},
			problems: []string{
				"f.yaml, document 2: is not a manifest: must not be of type array",
				"f.yaml, document 3: is not a manifest: not YAML or JSON",
				"f.yaml, document 4: Pod: has no apiVersion and kind",
				"f.yaml, document 5: Pod: apiVersion is not of the form group/version",
			},
		},
		{name: "an item that is none", text: "apiVersion: v1\nkind: List\nitems: [5]\n", problems: []string{"f.yaml, document 1, item 1: is not a manifest: must not be of type number"}},
		{
			name: "a list with a field twice", text: "apiVersion: v1\nkind: List\nitems: []\nitems: [{apiVersion: v1, kind: Pod}]\n",
			problems: []string{"f.yaml, document 1: List: is not a manifest: not YAML or JSON in line 4"},
		},
		{name: "a separator with more", text: pod + "--- {a: b}\n" + pod, workloads: []string{}, problems: []string{"f.yaml, document 1: is not a manifest: only a comment may follow ---"}},
		{
			name: "unknown and repeated fields", text: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {volume: []}\nspec: {volumes: []}\n",
			workloads: []string{"f.yaml, document 1: Pod ns/p"},
			problems:  []string{`f.yaml, document 1: Pod ns/p: yaml: unmarshal errors: line 5: key "spec" already set in map`},
		},
		{
			name: "a wrong type", text: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {volumes: 5}\n",
			problems: []string{"f.yaml, document 1: Pod ns/p: json: cannot unmarshal number into Go struct field PodSpec.spec.volumes of type []v1.Volume"},
		},
		{
			name: "versions that no API server has", text: "apiVersion: apps/v1beta2\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: c}\n",
			problems: []string{
				"f.yaml, document 1: Deployment d: apiVersion apps/v1beta2 is not supported; use apps/v1",
				"f.yaml, document 2: CronJob c: apiVersion batch/v1beta1 is not supported; use batch/v1",
			},
		},
		{
			name: "a controller without a template", text: "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: r}\n",
			problems: []string{"f.yaml, document 1: ReplicationController ns/r: has no pod template"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := add(t, nil, test.text)
			var workloads []Location
			for i := range r.Workloads {
				workloads = append(workloads, r.Workloads[i].Location)
			}
			lines(t, "workloads", texts(workloads), test.workloads)
			lines(t, "passed over", texts(r.PassedOver), test.passedOver)
			lines(t, "problems", texts(r.Problems), test.problems)
			lines(t, "warnings", texts(r.Warnings), nil)
		})
	}
}

func TestFilesAddUp(t *testing.T) {
	c := newChecker(t, Options{})
	for _, name := range []string{"a", "b"} {
		must(t, c.Add(t.Context(), name, strings.NewReader("apiVersion: v1\nkind: Pod\n")))
	}
	if r := c.Report(); len(r.Workloads) != 2 || r.Workloads[0].File != "a" || r.Workloads[1].File != "b" || r.Workloads[1].Document != 1 {
		t.Errorf("got %+v", r.Workloads)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	c := newChecker(t, Options{})
	if err := c.Add(t.Context(), "f", iotest.ErrReader(errors.New("broken disk"))); err == nil || err.Error() != "read f: broken disk" {
		t.Errorf("got %v", err)
	}
	const separator = "--- x\n" // is wrong, so that the rest is not parsed
	larger := strings.NewReader(separator + strings.Repeat("x", maxFileSize-len(separator)+1))
	if err := c.Add(t.Context(), "f", larger); err == nil || err.Error() != "read f: has more than 32 MiB" {
		t.Errorf("a larger file: %v", err)
	}
	largest := strings.NewReader(separator + strings.Repeat("x", maxFileSize-len(separator)))
	if err := c.Add(t.Context(), "f", largest); err != nil {
		t.Errorf("a file of the largest size: %v", err)
	}
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
