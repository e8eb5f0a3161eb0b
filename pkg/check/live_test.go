package check

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/refvol/refvol/pkg/volume"
)

// fakeCluster has a test's objects and rights.
type fakeCluster struct {
	objects map[string]Object // by their Ref's String
	may     map[string]Answer // by account > Ref
}

func (c *fakeCluster) Lookup(_ context.Context, ref volume.Ref) (Object, error) {
	object, ok := c.objects[ref.String()]
	if !ok {
		object.Exists = No
	}
	return object, nil
}

func (c *fakeCluster) CanI(_ context.Context, account volume.ServiceAccount, ref volume.Ref, verb string) (Answer, error) {
	key := account.Namespace + "/" + account.Name + " > " + ref.String()
	if verb != "get" {
		key += " " + verb
	}
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
	const whole, key, optional = "envFrom: [{configMapRef: {name: o%s}}]", "env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k%s}}}]", ", optional: true"
	for _, test := range []struct {
		name, reference, more string // of a container
		object                Object
		want                  string // whether it exists, the keys that are missing, and the problem
	}{
		{"there", whole, "", having("k"), "yes []"},
		{"not there", whole, "", Object{Exists: No}, `no [] ConfigMap "ns/o" does not exist`},
		{"not there, optional", whole, optional, Object{Exists: No}, "no []"},
		{"not to be read", whole, "", Object{Exists: Unknown}, "unknown []"},
		{"key not to be read", key, "", Object{Exists: Unknown}, "unknown []"},
		{"key", key, "", having("k"), "yes []"},
		{"no key", key, "", having("other"), `yes [k] ConfigMap "ns/o" has no key "k"`},
		{"no key, optional", key, optional, having(), "yes [k]"},
		{"binary key in the environment", key, "", Object{Exists: Yes, BinaryData: sets.New("k")}, `yes [k] ConfigMap "ns/o" has no key "k"`},
	} {
		cluster := &fakeCluster{objects: map[string]Object{`ConfigMap "ns/o"`: test.object}}
		r := add(t, cluster, "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, "+strings.Replace(test.reference, "%s", test.more, 1)+"}]}\n")
		ref := r.Workloads[0].References[0]
		got := fmt.Sprintf("%s %v", ref.Exists, ref.MissingKeys)
		for _, f := range r.Problems {
			got += " " + f.Message
			if f.Field != ref.Field {
				t.Errorf("%s: %s is at %s, the reference at %s", test.name, f.Message, f.Field, ref.Field)
			}
		}
		if got != test.want || ref.MayGet != NotNeeded {
			t.Errorf("%s: got %s, want %s; may get: %s", test.name, got, test.want, ref.MayGet)
		}
	}
}

// A volume shows binaryData too. An env file does not, whatever its source.
func TestLiveBinaryData(t *testing.T) {
	cluster := &fakeCluster{objects: map[string]Object{`ConfigMap "ns/o"`: {Exists: Yes, BinaryData: sets.New("k")}, `Secret "ns/i"`: having("k")}}
	const ref = "{name: A, valueFrom: {configMapKeyRef: {name: o, key: k}}}"
	r := add(t, cluster, podWith(`{sources: "[{configMap: {name: o, items: [{key: k, path: k}, {key: l, path: l}, {key: l, path: l2}]}},
    {env: {path: e, env: [`+ref+`]}}, {podEnv: {path: p, container: c}}]"}`, "[{name: c, env: ["+ref+"]}]")+
		"  - {name: native, configMap: {name: o, items: [{key: k, path: k}]}}\n")
	const at, message = "f.yaml, document 1: Pod ns/p: spec.", `: ConfigMap "ns/o" has no key "`
	lines(t, "problems", texts(r.Problems), []string{
		at + "containers[0].env[0].valueFrom.configMapKeyRef.name" + message + `k"`,
		at + "volumes[0].csi.volumeAttributes.sources[0].configMap.name" + message + `l"`,
		at + "volumes[0].csi.volumeAttributes.sources[1].env.env[0].valueFrom.configMapKeyRef.name" + message + `k"`,
		at + "volumes[0].csi.volumeAttributes.sources[2].podEnv" + message + `k"`,
	})
}

// With the plugin's identity, rights matter only for objects of other namespaces. With --identity=pod they matter for everything that a
// volume of the driver shows, but not for what the kubelet reads. If no identity is given, what it would need is a warning that names it.
func TestRights(t *testing.T) {
	const (
		own, theirs = `ns/default > Secret "ns/own"`, `ns/default > Secret "other/theirs"`
		both, one   = `{sources: "[{secret: {name: own}}, {secret: {name: theirs, namespace: other}}]"}`, "{secret: own}"
		sources     = "spec.volumes[0].csi.volumeAttributes.sources"
		warning     = "spec.volumes[0].csi.volumeAttributes.secret: service account ns/default may not "
		which       = ` Secret "ns/own", which --identity=pod of the plugin needs (no --identity was given)`
		noOwn       = `[0].secret.name: service account ns/default may not get, list, watch Secret "ns/own"`
	)
	verbs, all, anyIdentity := Options{PodVerbs: []string{"get", "list", "watch"}}, []Answer{Yes, Yes, Yes}, Options{AnyIdentity: true}
	for _, test := range []struct {
		name, attributes string
		opts             Options
		own, theirs      []Answer // for get, list and watch
		mayGet           Answer   // of own in the report
		problems, warns  []string
	}{
		{"the plugin's identity", both, Options{}, nil, nil, NotNeeded, []string{sources + `[1].secret.name: service account ns/default may not get Secret "other/theirs"`}, nil},
		{"the plugin's identity, granted", both, Options{}, nil, []Answer{Yes}, NotNeeded, nil, nil},
		{"not known", both, verbs, []Answer{Unknown, Unknown, Unknown}, []Answer{Unknown, Unknown, Unknown}, Unknown, nil, nil},
		{"pods' identity", both, verbs, []Answer{Yes}, all, Yes, []string{sources + `[0].secret.name: service account ns/default may not list, watch Secret "ns/own"`}, nil},
		{"pods' identity, without watches", both, Options{PodVerbs: []string{"get"}}, []Answer{Yes}, nil, Yes, []string{
			sources + `[1].secret.name: service account ns/default may not get Secret "other/theirs"`,
		}, nil},
		{"pods' identity, nothing granted", both, verbs, nil, nil, No, []string{
			sources + noOwn, sources + `[1].secret.name: service account ns/default may not get, list, watch Secret "other/theirs"`,
		}, nil},
		{"all but get", both, verbs, []Answer{No, Yes, Yes}, all, No, []string{sources + `[0].secret.name: service account ns/default may not get Secret "ns/own"`}, nil},
		{"get is not known", both, verbs, []Answer{Unknown, Yes, Yes}, all, Unknown, nil, nil},
		{"no right", one, anyIdentity, nil, nil, NotNeeded, nil, []string{warning + "get, list, watch" + which}},
		{"some", one, anyIdentity, []Answer{Yes}, nil, NotNeeded, nil, []string{warning + "list, watch" + which}},
		{"all", one, anyIdentity, all, nil, NotNeeded, nil, nil},
		{"not known for any identity", one, anyIdentity, []Answer{Unknown, Unknown, Unknown}, nil, NotNeeded, nil, nil},
		{"the identity is given", one, Options{}, nil, nil, NotNeeded, nil, nil},
	} {
		cluster := &fakeCluster{objects: map[string]Object{`Secret "ns/own"`: having(), `Secret "other/theirs"`: having(), `Secret "ns/i"`: having("k")}, may: map[string]Answer{}}
		for key, answers := range map[string][]Answer{own: test.own, theirs: test.theirs} {
			for i, answer := range answers {
				cluster.may[key+[]string{"", " list", " watch"}[i]] = answer
			}
		}
		test.opts.Cluster = cluster
		r := checkedBy(t, test.opts, podWith(test.attributes, "[{name: c, envFrom: [{secretRef: {name: own}}]}]"))
		const at = "f.yaml, document 1: Pod ns/p: "
		lines(t, test.name+": problems", trim(at, texts(r.Problems)), test.problems)
		var warns []string
		for _, text := range trim(at, texts(r.Warnings)) {
			if strings.Contains(text, "may not") {
				warns = append(warns, text)
			}
		}
		lines(t, test.name, warns, test.warns)
		for _, ref := range r.Workloads[0].References {
			if ref.Name == "own" && ref.Refvol && ref.MayGet != test.mayGet {
				t.Errorf("%s: may get: %s, want %s", test.name, ref.MayGet, test.mayGet)
			}
		}
	}
}

func newServer(t *testing.T, objects ...runtime.Object) (*APIServer, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objects...)
	return &APIServer{
		ConfigMaps: func(namespace string) ConfigMaps { return client.CoreV1().ConfigMaps(namespace) },
		Secrets:    func(namespace string) Secrets { return client.CoreV1().Secrets(namespace) },
		Reviews:    client.AuthorizationV1().SubjectAccessReviews(),
	}, client
}

func TestMay(t *testing.T) {
	forbidden := apierrors.NewForbidden(authorizationv1.Resource("subjectaccessreviews"), "", errors.New("no"))
	broken := errors.New("connection refused")
	for _, test := range []struct {
		name   string
		status authorizationv1.SubjectAccessReviewStatus
		err    error
		want   Answer
	}{
		{name: "allowed", status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}, want: Yes},
		{name: "allowed, one authorizer failed", status: authorizationv1.SubjectAccessReviewStatus{Allowed: true, EvaluationError: "x"}, want: Yes},
		{name: "nobody allows", want: No},
		{name: "denied", status: authorizationv1.SubjectAccessReviewStatus{Denied: true}, want: No},
		{name: "denied, as the authorizer failed", status: authorizationv1.SubjectAccessReviewStatus{Denied: true, EvaluationError: "x"}, want: Unknown},
		{name: "an authorizer failed", status: authorizationv1.SubjectAccessReviewStatus{EvaluationError: "x"}, want: Unknown},
		{name: "not to be asked", err: forbidden, want: Unknown},
		{name: "out of reach", err: broken, want: Unknown},
	} {
		for kind, resource := range map[volume.Kind]string{volume.ConfigMap: "configmaps", volume.Secret: "secrets"} {
			s, client := newServer(t)
			var asked authorizationv1.SubjectAccessReviewSpec
			client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
				review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview) //nolint:forcetypeassert // It is one.
				asked = review.Spec
				return true, &authorizationv1.SubjectAccessReview{Status: test.status}, test.err
			})
			ref := volume.Ref{Kind: kind, Namespace: "source", Name: "o"}
			got, err := s.CanI(context.Background(), volume.ServiceAccount{Namespace: "ns", Name: "web"}, ref, "watch")
			if got != test.want || (err != nil) != errors.Is(test.err, broken) {
				t.Errorf("%s: got %s, %v, want %s", test.name, got, err, test.want)
			}
			want := authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:ns:web",
				Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "source", Verb: "watch", Version: "v1", Resource: resource, Name: "o"},
			}
			if !reflect.DeepEqual(asked, want) {
				t.Errorf("%s: asked %+v", test.name, asked)
			}
		}
	}
}

// TestLookup: an object that doesn't exist is no error. An object that may not be read is unknown.
func TestLookup(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("secrets"), "o", errors.New("no"))
	broken := errors.New("connection refused")
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "o"}
	canary := meta
	canary.Annotations = map[string]string{volume.CanaryAnnotation: "25%"}
	objects := []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a": "1"}, BinaryData: map[string][]byte{"b": {1, 2}}},
		&corev1.Secret{ObjectMeta: canary, Data: map[string][]byte{"a": {1, 2, 3}}},
	}
	both := Object{Exists: Yes, Data: sets.New("a"), BinaryData: sets.New("b"), Canary: "0%", sizes: map[string]int64{"a": 1, "b": 2}}
	one := Object{Exists: Yes, Data: sets.New("a"), Canary: "25%", sizes: map[string]int64{"a": 3}}
	for _, test := range []struct {
		ref  volume.Ref
		err  error
		want Object
	}{
		{ref: volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "o"}, want: both},
		{ref: volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "o"}, want: one},
		{ref: volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "other"}, want: Object{Exists: No}},
		{ref: volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "other"}, want: Object{Exists: No}},
		{ref: volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "../o"}, err: broken, want: Object{Exists: No}}, // it sends no request
		{ref: volume.Ref{Kind: volume.Secret, Namespace: "..", Name: "o"}, err: broken, want: Object{Exists: No}},
		{ref: volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "o"}, err: forbidden, want: Object{Exists: Unknown}},
		{ref: volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "o"}, err: forbidden, want: Object{Exists: Unknown}},
		{ref: volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "o"}, err: broken},
		{ref: volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "o"}, err: broken},
	} {
		s, client := newServer(t, objects...)
		if test.err != nil {
			client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.err })
		}
		got, err := s.Lookup(t.Context(), test.ref)
		if fails := reflect.DeepEqual(test.want, Object{}); !reflect.DeepEqual(got, test.want) || (err != nil) != fails {
			t.Errorf("%s, answered %v: got %+v, %v, want %+v", test.ref, test.err, got, err, test.want)
		}
	}
}
