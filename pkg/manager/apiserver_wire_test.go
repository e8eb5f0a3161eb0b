package manager

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/internal/apitest"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

func (s *apiServer) parse(req *http.Request) apiRequest {
	q := req.URL.Query()
	r := apiRequest{
		account: requests.MetaOf(req.Context()).Account,
		watch:   q.Get("watch") == "true",
		initial: q.Get("sendInitialEvents") == "true",
		rv:      q.Get("resourceVersion"),
		timeout: q.Get("timeoutSeconds"),
		at:      time.Now(),
	}
	if encoding := req.Header.Get("Accept-Encoding"); r.watch && encoding != "identity" {
		s.t.Errorf("a watch takes the encoding %q", encoding)
	}
	part := strings.Split(strings.Trim(req.URL.Path, "/"), "/") // api/v1/namespaces/NS/RESOURCE
	kinds := map[string]volume.Kind{"configmaps": volume.ConfigMap, "secrets": volume.Secret}
	name, list := strings.CutPrefix(q.Get("fieldSelector"), "metadata.name=")
	switch {
	case req.Method == http.MethodGet && len(part) == 5 && list:
		r.ref = volume.Ref{Kind: kinds[part[4]], Namespace: part[3], Name: name}
	case req.Method == http.MethodGet && len(part) == 6 && !list:
		r.ref, r.get = volume.Ref{Kind: kinds[part[4]], Namespace: part[3], Name: part[5]}, true
	case req.Method == http.MethodGet && len(part) == 4 && part[2] == "nodes":
		r.ref, r.get = nodeRef, true
	default:
		s.t.Errorf("unexpected request: %s %s", req.Method, req.URL)
	}
	return r
}

func (s *apiServer) get(r apiRequest) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	obj := s.At(r.ref, s.RV)
	if obj == nil {
		return failure(apierrors.NewNotFound(schema.GroupResource{Resource: strings.ToLower(string(r.ref.Kind)) + "s"}, r.ref.Name))
	}
	return apitest.Answer(http.StatusOK, obj), nil
}

func refOf(obj metav1.Object) volume.Ref {
	kind := volume.Secret
	switch obj.(type) {
	case *corev1.ConfigMap:
		kind = volume.ConfigMap
	case *corev1.Node:
		return nodeRef
	}
	return volume.Ref{Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

func tooLarge() error {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.RetryAfterSeconds = 0
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

// page is the answer of a proxy that is not a Status.
type page string

func (p page) Error() string { return string(p) }

// failure answers with a Status or a page, or fails like a broken connection.
func failure(err error) (*http.Response, error) {
	if text, is := errors.AsType[page](err); is {
		header := http.Header{"Content-Type": {"text/plain"}}
		return &http.Response{StatusCode: http.StatusBadGateway, Header: header, Body: io.NopCloser(strings.NewReader(string(text)))}, nil
	}
	status, is := errors.AsType[*apierrors.StatusError](err)
	if !is {
		return nil, err
	}
	body := status.ErrStatus
	body.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	response := apitest.Answer(int(body.Code), body)
	if body.Details != nil && body.Details.RetryAfterSeconds > 0 {
		response.Header.Set("Retry-After", strconv.Itoa(int(body.Details.RetryAfterSeconds)))
	}
	return response, nil
}

func typeMeta(kind volume.Kind) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: string(kind), APIVersion: "v1"}
}
