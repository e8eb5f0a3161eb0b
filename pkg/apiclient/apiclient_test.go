package apiclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/internal/must"
)

type transport func(*http.Request) (*http.Response, error)

func (send transport) RoundTrip(req *http.Request) (*http.Response, error) { return send(req) }

func newClient(t *testing.T, contentType string, send transport) *Client {
	t.Helper()
	config := &rest.Config{Host: "http://api.test", ContentConfig: rest.ContentConfig{ContentType: contentType}}
	c := must.Get(New(config, &http.Client{Transport: send}))(t)
	return c
}

// TestBodiesAreProtobuf if the configuration says so.
func TestBodiesAreProtobuf(t *testing.T) {
	errSent := errors.New("it was sent")
	c := newClient(t, runtime.ContentTypeProtobuf, func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if form := req.Header.Get("Content-Type"); !bytes.HasPrefix(body, []byte("k8s\x00")) || form != runtime.ContentTypeProtobuf {
			t.Errorf("sent %q as %s", body, form)
		}
		return nil, errors.Join(err, errSent)
	})
	if _, err := c.Events("ns").Create(t.Context(), &corev1.Event{}, metav1.CreateOptions{}); !errors.Is(err, errSent) {
		t.Errorf("got %v", err)
	}
}

func TestNewRefusesABadConfiguration(t *testing.T) {
	if _, err := New(&rest.Config{Host: "http://a b"}, http.DefaultClient); err == nil || !strings.Contains(err.Error(), "make a client of v1: ") {
		t.Errorf("got %v", err)
	}
}

// A review, or a read of a pod, is sent once. The caller obeys the delay that the API server asks for.
func TestSentOnce(t *testing.T) {
	sent := 0
	c := newClient(t, runtime.ContentTypeJSON, func(*http.Request) (*http.Response, error) {
		sent++
		text, err := json.Marshal(apierrors.NewTooManyRequests("busy", 1).ErrStatus)
		header := http.Header{"Content-Type": {runtime.ContentTypeJSON}, "Retry-After": {"1"}}
		return &http.Response{StatusCode: http.StatusTooManyRequests, Header: header, Body: io.NopCloser(bytes.NewReader(text))}, err
	})
	_, aboutSelf := c.SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	_, about := c.SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
	_, own := c.SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
	_, pod := c.Pods("shop").Get(t.Context(), "web", metav1.GetOptions{})
	for _, err := range []error{aboutSelf, about, own, pod} {
		if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != 1 {
			t.Errorf("got %v, want an error that asks for a second", err)
		}
	}
	if sent != 4 {
		t.Errorf("%d requests, want four", sent)
	}
}
