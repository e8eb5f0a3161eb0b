package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

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
	obj := s.at(r.ref, s.rv)
	if obj == nil {
		return failure(apierrors.NewNotFound(schema.GroupResource{Resource: strings.ToLower(string(r.ref.Kind)) + "s"}, r.ref.Name))
	}
	return respond(http.StatusOK, obj)
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

// watchBody notifies the server when the client closes it.
type watchBody struct {
	*io.PipeReader
	hangUp context.CancelFunc
}

func (b watchBody) Close() error {
	b.hangUp()
	return b.PipeReader.Close()
}

func bookmark(ref volume.Ref, rv int) metav1.WatchEvent {
	meta := metav1.ObjectMeta{
		ResourceVersion: strconv.Itoa(rv),
		Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}
	var obj runtime.Object = &corev1.Secret{TypeMeta: typeMeta(volume.Secret), ObjectMeta: meta}
	if ref.Kind == volume.ConfigMap {
		obj = &corev1.ConfigMap{TypeMeta: typeMeta(volume.ConfigMap), ObjectMeta: meta}
	}
	return metav1.WatchEvent{Type: string(watch.Bookmark), Object: runtime.RawExtension{Object: obj}}
}

func tooLarge() error {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.RetryAfterSeconds = 0
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

// failure answers with a Status, or fails like a broken connection.
func failure(err error) (*http.Response, error) {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return nil, err
	}
	body := status.ErrStatus
	body.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	response, err := respond(int(body.Code), body)
	if err == nil && body.Details != nil && body.Details.RetryAfterSeconds > 0 {
		response.Header.Set("Retry-After", strconv.Itoa(int(body.Details.RetryAfterSeconds)))
	}
	return response, err
}

func respond(code int, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Header: jsonHeader(), Body: io.NopCloser(bytes.NewReader(b))}, nil
}

func jsonHeader() http.Header { return http.Header{"Content-Type": {"application/json"}} }

func typeMeta(kind volume.Kind) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: string(kind), APIVersion: "v1"}
}

// eventWriter returns a function that writes watch events as a real API server does.
func (s *apiServer) eventWriter(w io.Writer) func(any) error {
	to := protobuf.LengthDelimitedFramer.NewFrameWriter(w)
	objects, events := protobuf.NewSerializer(s.scheme, s.scheme), protobuf.NewRawSerializer(s.scheme, s.scheme)
	return func(e any) error {
		var frame bytes.Buffer
		switch e := e.(type) {
		case metav1.WatchEvent:
			if e.Object.Object != nil {
				var object bytes.Buffer
				if err := objects.Encode(e.Object.Object, &object); err != nil {
					return err
				}
				e.Object = runtime.RawExtension{Raw: object.Bytes()}
			}
			if err := events.Encode(&e, &frame); err != nil {
				return err
			}
		case string:
			frame.WriteString(e)
		default:
			return fmt.Errorf("%T is no event", e)
		}
		_, err := to.Write(frame.Bytes())
		return err
	}
}
