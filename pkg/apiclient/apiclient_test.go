package apiclient

import (
	"bytes"
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
	"k8s.io/client-go/rest"
)

// server answers every request with an object, or with an API error, and keeps the last request and its body.
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

// TestBodiesAreProtobuf if the configuration says so.
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

// A review, or a read of a pod, is sent once. The caller obeys the delay that the API server asks for.
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
