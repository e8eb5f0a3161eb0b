// Package apitest has parts of an API server in memory: the versions of objects, and the forms of answers. A test's own server is the transport
// of a client, and decides what it answers. The package must not know what is tested.
package apitest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/pkg/volume"
)

// Change is a version of an object, or its end.
type Change struct {
	RV     int
	Kind   watch.EventType
	Object metav1.Object
}

// Objects has the changes of each object, oldest first. RV is the newest resourceVersion. It is not safe for concurrent use.
type Objects struct {
	RV      int
	Changes map[volume.Ref][]Change
}

// Add gives an object the next resourceVersion.
func (o *Objects) Add(ref volume.Ref, kind watch.EventType, obj metav1.Object) {
	o.RV++
	obj.SetResourceVersion(strconv.Itoa(o.RV))
	o.Changes[ref] = append(o.Changes[ref], Change{o.RV, kind, obj})
}

// At returns an object at a resourceVersion, or nil.
func (o *Objects) At(ref volume.Ref, rv int) (obj metav1.Object) {
	for _, c := range o.Changes[ref] {
		if c.RV > rv {
			break
		}
		if obj = c.Object; c.Kind == watch.Deleted {
			obj = nil
		}
	}
	return obj
}

// Between returns the events of an object after one resourceVersion and up to another, and the resourceVersion of the last event.
func (o *Objects) Between(ref volume.Ref, after, upTo int) (events []*metav1.WatchEvent, last int) {
	last = after
	for _, c := range o.Changes[ref] {
		if obj, is := c.Object.(runtime.Object); is && c.RV > after && c.RV <= upTo {
			events, last = append(events, Event(c.Kind, obj)), c.RV
		}
	}
	return events, last
}

// Event returns an event of a watch.
func Event(kind watch.EventType, obj runtime.Object) *metav1.WatchEvent {
	return &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: obj}}
}

// Bookmark returns a bookmark of a watch. An initial one ends the initial events.
func Bookmark(ref volume.Ref, rv int, isInitial bool) *metav1.WatchEvent {
	meta := metav1.ObjectMeta{ResourceVersion: strconv.Itoa(rv)}
	if isInitial {
		meta.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	about := metav1.TypeMeta{Kind: string(ref.Kind), APIVersion: "v1"}
	if ref.Kind == volume.ConfigMap {
		return Event(watch.Bookmark, &corev1.ConfigMap{TypeMeta: about, ObjectMeta: meta})
	}
	return Event(watch.Bookmark, &corev1.Secret{TypeMeta: about, ObjectMeta: meta})
}

// Frame returns an event in protobuf, as an API server sends it.
func Frame(e *metav1.WatchEvent) []byte {
	encoded := *e
	if e.Object.Object != nil {
		encoded.Object = runtime.RawExtension{Raw: encode(protobuf.NewSerializer(nil, nil), e.Object.Object)}
	}
	return encode(protobuf.NewRawSerializer(nil, nil), &encoded)
}

func encode(to runtime.Encoder, obj runtime.Object) []byte {
	var out bytes.Buffer
	if err := to.Encode(obj, &out); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// Answer returns an answer in JSON.
func Answer(code int, body any) *http.Response {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text))}
}

// Body is the body of an answer. It calls End when it is closed.
type Body struct {
	io.ReadCloser
	End func()
}

// Close ends the answer.
func (b Body) Close() error {
	err := b.ReadCloser.Close()
	b.End()
	return err
}
