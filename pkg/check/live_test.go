package check

import (
	"context"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/refvol/refvol/pkg/volume"
)

// fakeCluster has a test's objects and rights, and counts the questions.
type fakeCluster struct {
	objects map[string]Object // by their Ref's String
	may     map[string]Answer // by account > Ref
	asked   []string
	err     error
}

func (c *fakeCluster) Lookup(_ context.Context, ref volume.Ref) (Object, error) {
	c.asked = append(c.asked, ref.String())
	object, ok := c.objects[ref.String()]
	if !ok {
		object.Exists = No
	}
	return object, c.err
}

func (c *fakeCluster) CanI(_ context.Context, account volume.ServiceAccount, ref volume.Ref, verb string) (Answer, error) {
	key := account.Namespace + "/" + account.Name + " > " + ref.String()
	if verb != "get" {
		key += " " + verb
	}
	c.asked = append(c.asked, key)
	answer, ok := c.may[key]
	if !ok {
		answer = No
	}
	return answer, nil
}

func having(data ...string) Object { return Object{Exists: Yes, Data: sets.New(data...)} }

// shop returns a cluster that has some of what testdata/app.yaml needs.
func shop() *fakeCluster {
	return &fakeCluster{
		objects: map[string]Object{`Secret "shop/db"`: having("user"), `ConfigMap "shop/app"`: having("app.yaml")},
		may:     map[string]Answer{`shop/web > Secret "shop/db"`: Yes, `shop/web > ConfigMap "shop/app"`: Unknown},
	}
}

func TestLive(t *testing.T) {
	for _, test := range []struct {
		name, reference string // of a container
		object          Object
		exists          Answer
		missing         []string
		problems        []string // after the path
	}{
		{name: "there", reference: "envFrom: [{configMapRef: {name: o}}]", object: having("k"), exists: Yes},
		{name: "not there", reference: "envFrom: [{configMapRef: {name: o}}]", object: Object{Exists: No}, exists: No, problems: []string{`ConfigMap "ns/o" does not exist`}},
		{name: "not there, optional", reference: "envFrom: [{configMapRef: {name: o, optional: true}}]", object: Object{Exists: No}, exists: No},
		{name: "not to be read", reference: "envFrom: [{configMapRef: {name: o}}]", object: Object{Exists: Unknown}, exists: Unknown},
		{name: "key not to be read", reference: "env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k}}}]", object: Object{Exists: Unknown}, exists: Unknown},
		{name: "key", reference: "env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k}}}]", object: having("k"), exists: Yes},
		{
			name: "no key", reference: "env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k}}}]", object: having("other"), exists: Yes,
			missing: []string{"k"}, problems: []string{`ConfigMap "ns/o" has no key "k"`},
		},
		{name: "no key, optional", reference: "env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k, optional: true}}}]", object: having(), exists: Yes, missing: []string{"k"}},
		{
			name: "binary key in the environment", reference: "env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k}}}]",
			object: Object{Exists: Yes, BinaryData: sets.New("k")}, exists: Yes,
			missing: []string{"k"}, problems: []string{`ConfigMap "ns/o" has no key "k"`},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			cluster := &fakeCluster{objects: map[string]Object{`ConfigMap "ns/o"`: test.object}}
			r := add(t, cluster, "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, "+test.reference+"}]}\n")
			ref := r.Workloads[0].References[0]
			if ref.Exists != test.exists || !slices.Equal(ref.MissingKeys, test.missing) || ref.MayGet != NotNeeded {
				t.Errorf("got %+v", ref)
			}
			var problems []string
			for _, f := range r.Problems {
				if f.Field != ref.Field {
					t.Errorf("%s is at %s, the reference at %s", f.Message, f.Field, ref.Field)
				}
				problems = append(problems, f.Message)
			}
			lines(t, "problems", problems, test.problems)
		})
	}
}

// A volume shows binaryData too. An env file does not, whatever its source.
func TestLiveBinaryData(t *testing.T) {
	cluster := &fakeCluster{objects: map[string]Object{`ConfigMap "ns/o"`: {Exists: Yes, BinaryData: sets.New("k")}}}
	r := add(t, cluster, `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k}}}]}]
  volumes:
  - {name: native, configMap: {name: o, items: [{key: k, path: k}]}}
  - name: v
    csi:
      driver: csi.refvol.dev
      readOnly: true
      volumeAttributes:
        sources: |
          - configMap: {name: o, items: [{key: k, path: k}, {key: l, path: l}, {key: l, path: l2}]}
          - env: {path: e, env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k}}}]}
          - podEnv: {path: p, container: c}
`)
	const at, message = "f.yaml, document 1: Pod ns/p: spec.", `: ConfigMap "ns/o" has no key "`
	lines(t, "problems", texts(r.Problems), []string{
		at + "containers[0].env[0].valueFrom.configMapKeyRef.name" + message + `k"`,
		at + "volumes[1].csi.volumeAttributes.sources[0].configMap.name" + message + `l"`,
		at + "volumes[1].csi.volumeAttributes.sources[1].env.env[0].valueFrom.configMapKeyRef.name" + message + `k"`,
		at + "volumes[1].csi.volumeAttributes.sources[2].podEnv" + message + `k"`,
	})
}

// With the plugin's identity, rights matter only for objects of other namespaces. With --identity=pod they matter for everything that a
// volume of the driver shows, but not for what the kubelet reads.
func TestRights(t *testing.T) {
	const pod = `apiVersion: v1
kind: Pod
spec:
  containers: [{name: c, envFrom: [{secretRef: {name: own}}]}]
  volumes: [{name: v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {sources: "[{secret: {name: own}}, {secret: {name: theirs, namespace: other}}]"}}}]
`
	const own, theirs = `ns/default > Secret "ns/own"`, `ns/default > Secret "other/theirs"`
	const at = "spec.volumes[0].csi.volumeAttributes.sources"
	watch := []string{"get", "list", "watch"}
	for _, test := range []struct {
		name     string
		verbs    []string
		may      map[string]Answer
		problems []string
	}{
		{"the plugin's identity", nil, nil, []string{at + `[1].secret.name: service account ns/default may not get Secret "other/theirs"`}},
		{"the plugin's identity, granted", nil, map[string]Answer{theirs: Yes}, nil},
		{"not known", watch, map[string]Answer{
			own: Unknown, own + " list": Unknown, own + " watch": Unknown, theirs: Unknown, theirs + " list": Unknown, theirs + " watch": Unknown,
		}, nil},
		{"pods' identity", watch, map[string]Answer{own: Yes, theirs: Yes, theirs + " list": Yes, theirs + " watch": Yes}, []string{
			at + `[0].secret.name: service account ns/default may not list, watch Secret "ns/own"`,
		}},
		{"pods' identity, without watches", []string{"get"}, map[string]Answer{own: Yes}, []string{
			at + `[1].secret.name: service account ns/default may not get Secret "other/theirs"`,
		}},
		{"pods' identity, nothing granted", watch, nil, []string{
			at + `[0].secret.name: service account ns/default may not get, list, watch Secret "ns/own"`,
			at + `[1].secret.name: service account ns/default may not get, list, watch Secret "other/theirs"`,
		}},
	} {
		cluster := &fakeCluster{objects: map[string]Object{`Secret "ns/own"`: having(), `Secret "other/theirs"`: having()}, may: test.may}
		c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: cluster, PodVerbs: test.verbs})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Add(t.Context(), "pod.yaml", strings.NewReader(pod)); err != nil {
			t.Fatal(err)
		}
		var problems []string
		for _, f := range c.Report().Problems {
			problems = append(problems, f.Field+": "+f.Message)
		}
		lines(t, test.name, problems, test.problems)
	}
}

// TestMayGet: the report has the answer for the verb get, and not for another.
func TestMayGet(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c}], volumes: [{name: v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {secret: own}}}]}\n"
	const own = `ns/default > Secret "ns/own"`
	for _, test := range []struct{ get, others Answer }{{Yes, No}, {No, Yes}, {Unknown, No}} {
		cluster := &fakeCluster{objects: map[string]Object{`Secret "ns/own"`: having()}, may: map[string]Answer{own: test.get, own + " list": test.others, own + " watch": test.others}}
		c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: cluster, PodVerbs: []string{"get", "list", "watch"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Add(t.Context(), "pod.yaml", strings.NewReader(pod)); err != nil {
			t.Fatal(err)
		}
		if got := c.Report().Workloads[0].References[0].MayGet; got != test.get {
			t.Errorf("get %s, others %s: got %s", test.get, test.others, got)
		}
	}
}

// TestRightsWithoutIdentity: a right that --identity=pod would need and the account lacks is a warning that names the mode. If an identity
// is given, there is no such warning.
func TestRightsWithoutIdentity(t *testing.T) {
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, envFrom: [{secretRef: {name: own}}]}]
  volumes: [{name: v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {secret: own}}}]
`
	const account = `ns/default > Secret "ns/own"`
	const warning = `f.yaml, document 1: Pod ns/p: spec.volumes[0].csi.volumeAttributes.secret: service account ns/default may not `
	const which = ` Secret "ns/own", which --identity=pod of the plugin needs (no --identity was given)`
	for name, test := range map[string]struct {
		isAny bool
		may   map[string]Answer
		want  []string
	}{
		"no right":              {true, nil, []string{warning + "get, list, watch" + which}},
		"some":                  {true, map[string]Answer{account: Yes}, []string{warning + "list, watch" + which}},
		"all":                   {true, map[string]Answer{account: Yes, account + " list": Yes, account + " watch": Yes}, nil},
		"not known":             {true, map[string]Answer{account: Unknown, account + " list": Unknown, account + " watch": Unknown}, nil},
		"the identity is given": {false, nil, nil},
	} {
		cluster := &fakeCluster{objects: map[string]Object{`Secret "ns/own"`: having()}, may: test.may}
		c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: cluster, AnyIdentity: test.isAny})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Add(t.Context(), "f.yaml", strings.NewReader(pod)); err != nil {
			t.Fatal(err)
		}
		lines(t, name, texts(c.Report().Warnings), test.want)
		lines(t, name+": problems", texts(c.Report().Problems), nil)
		if got := c.Report().Workloads[0].References[0].MayGet; got != NotNeeded {
			t.Errorf("%s: may get: %s", name, got)
		}
	}
}
