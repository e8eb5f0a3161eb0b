package check

import (
	"context"
	"errors"
	"reflect"
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
				create, ok := action.(clienttesting.CreateAction)
				if !ok {
					t.Fatalf("%T", action)
				}
				review, ok := create.GetObject().(*authorizationv1.SubjectAccessReview)
				if !ok {
					t.Fatalf("%T", create.GetObject())
				}
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
