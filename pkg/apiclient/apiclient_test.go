package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// server answers every request with an object, or fails it with an API error, and keeps the
// last request and its body.
type server struct {
	answer runtime.Object
	err    *apierrors.StatusError
	last   *http.Request
	body   string
	sent   int
}

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	s.last, s.body = req, ""
	s.sent++
	if req.Body != nil {
		text, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		s.body = string(text)
	}
	header := http.Header{"Content-Type": {runtime.ContentTypeJSON}}
	code, answer := http.StatusOK, s.answer
	if s.err != nil {
		code, answer = int(s.err.ErrStatus.Code), &s.err.ErrStatus
		if seconds, ok := apierrors.SuggestsClientDelay(s.err); ok {
			header.Set("Retry-After", strconv.Itoa(seconds))
		}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code, Header: header,
		Body: io.NopCloser(bytes.NewReader(text)),
	}, nil
}

func newClient(t *testing.T, s *server, contentType string) *Client {
	t.Helper()
	config := &rest.Config{Host: "http://api.test", ContentConfig: rest.ContentConfig{ContentType: contentType}}
	c, err := New(config, &http.Client{Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// named discards the object, of which only the name is of interest.
func named[T metav1.Object](obj T, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return obj.GetName(), nil
}

func TestRequests(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "o"}
	fresh := metav1.GetOptions{ResourceVersion: "0"}
	for _, test := range []struct {
		want   string
		answer runtime.Object
		send   func(ctx context.Context, c *Client) (string, error)
	}{
		{
			"GET /api/v1/namespaces/ns/configmaps/o", &corev1.ConfigMap{ObjectMeta: meta},
			func(ctx context.Context, c *Client) (string, error) {
				return named(c.ConfigMaps("ns").Get(ctx, "o", metav1.GetOptions{}))
			},
		},
		{
			"GET /api/v1/namespaces/ns/secrets/o", &corev1.Secret{ObjectMeta: meta},
			func(ctx context.Context, c *Client) (string, error) {
				return named(c.Secrets("ns").Get(ctx, "o", metav1.GetOptions{}))
			},
		},
		{
			"GET /api/v1/namespaces/ns/pods/o", &corev1.Pod{ObjectMeta: meta},
			func(ctx context.Context, c *Client) (string, error) {
				return named(c.Pods("ns").Get(ctx, "o", metav1.GetOptions{}))
			},
		},
		{
			"GET /api/v1/nodes/o?resourceVersion=0", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "o"}},
			func(ctx context.Context, c *Client) (string, error) { return named(c.Nodes().Get(ctx, "o", fresh)) },
		},
		{
			"PATCH /api/v1/nodes/o application/json-patch+json [1]", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "o"}},
			func(ctx context.Context, c *Client) (string, error) {
				return named(c.Nodes().Patch(ctx, "o", types.JSONPatchType, []byte("[1]"), metav1.PatchOptions{}))
			},
		},
		{
			"POST /api/v1/namespaces/ns/events application/json", &corev1.Event{ObjectMeta: meta},
			func(ctx context.Context, c *Client) (string, error) {
				return named(c.Events("ns").Create(ctx, &corev1.Event{ObjectMeta: meta}, metav1.CreateOptions{}))
			},
		},
		{
			"POST /apis/authentication.k8s.io/v1/selfsubjectreviews application/json", &authenticationv1.SelfSubjectReview{ObjectMeta: meta},
			func(ctx context.Context, c *Client) (string, error) {
				return named(c.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))
			},
		},
		{
			"POST /apis/authorization.k8s.io/v1/subjectaccessreviews application/json", &authorizationv1.SubjectAccessReview{ObjectMeta: meta},
			func(ctx context.Context, c *Client) (string, error) {
				return named(c.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{}))
			},
		},
		{
			"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews application/json", &authorizationv1.SelfSubjectAccessReview{ObjectMeta: meta},
			func(ctx context.Context, c *Client) (string, error) {
				return named(c.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{}))
			},
		},
	} {
		s := &server{answer: test.answer}
		name, err := test.send(t.Context(), newClient(t, s, runtime.ContentTypeJSON))
		if err != nil || name != "o" {
			t.Errorf("%s: got %q, %v", test.want, name, err)
			continue
		}
		got := strings.Join(append([]string{s.last.Method, s.last.URL.RequestURI()}, s.last.Header["Content-Type"]...), " ")
		if !strings.HasPrefix(strings.TrimSpace(got+" "+s.body), test.want) || strings.Contains(test.want, "GET") && got != test.want {
			t.Errorf("sent %s %s, want %s", got, s.body, test.want)
		}
		s.err = apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "o", nil)
		if _, err := test.send(t.Context(), newClient(t, s, runtime.ContentTypeJSON)); !apierrors.IsForbidden(err) {
			t.Errorf("%s: a refusal gives %v", test.want, err)
		}
	}
}

// TestBodiesAreProtobuf where the configuration says so.
func TestBodiesAreProtobuf(t *testing.T) {
	s := &server{answer: &corev1.Event{}}
	c := newClient(t, s, runtime.ContentTypeProtobuf)
	if _, err := c.Events("ns").Create(t.Context(), &corev1.Event{}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.body, "k8s\x00") || s.last.Header.Get("Content-Type") != runtime.ContentTypeProtobuf {
		t.Errorf("sent %q as %s", s.body, s.last.Header.Get("Content-Type"))
	}
}

func TestNewRefusesABadConfiguration(t *testing.T) {
	if _, err := New(&rest.Config{Host: "http://a b"}, http.DefaultClient); err == nil || !strings.Contains(err.Error(), "make a client of v1: ") {
		t.Errorf("got %v", err)
	}
}

// A review, and a read of a pod, is sent once: the delay that the API server asks for is for the
// caller to obey.
func TestSentOnce(t *testing.T) {
	s := &server{err: apierrors.NewTooManyRequests("busy", 1)}
	c := newClient(t, s, runtime.ContentTypeJSON)
	_, aboutSelf := c.SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	_, about := c.SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
	_, own := c.SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
	_, pod := c.Pods("shop").Get(t.Context(), "web", metav1.GetOptions{})
	for _, err := range []error{aboutSelf, about, own, pod} {
		if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != 1 {
			t.Errorf("got %v, want an error that asks for a second", err)
		}
	}
	if s.sent != 4 {
		t.Errorf("%d requests, want four", s.sent)
	}
}
