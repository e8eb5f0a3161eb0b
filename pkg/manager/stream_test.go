package manager

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/pkg/volume"
)

func statusObject() *metav1.Status {
	status := apierrors.NewResourceExpired("too old resource version").ErrStatus
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return &status
}

// body returns the answer of a server that sends events or frames, and then ends.
func body(t testing.TB, events ...any) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	send := newAPIServer(t).eventWriter(&out)
	for _, e := range events {
		must(t, send(e))
	}
	return &out
}

// read returns the stream of an answer.
func read(t testing.TB, body io.Reader) *stream {
	scheme := newAPIServer(t).scheme
	return &stream{body: body, decoder: protobuf.NewSerializer(scheme, scheme), ref: configMapRef("a"), inFlight: newInFlight()}
}

func eventOf(kind watch.EventType, obj runtime.Object) metav1.WatchEvent {
	return metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: obj}}
}

// fullConfigMap has every field that matters, and some that don't.
func fullConfigMap() *corev1.ConfigMap {
	immutable := true
	return &corev1.ConfigMap{
		TypeMeta: typeMeta(volume.ConfigMap),
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "7", Generation: 3,
			Labels:        map[string]string{"a": "b"},
			Annotations:   map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "": ""},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{}`)}},
		},
		Immutable: &immutable, Data: map[string]string{"k": "v", "e": ""}, BinaryData: map[string][]byte{"b": {0, 255}, "n": {}},
	}
}

func TestEventsAreRead(t *testing.T) {
	cm := fullConfigMap()
	want := objectOf(t, cm)
	for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, "NEW"} {
		got, err := read(t, body(t, eventOf(kind, cm))).next(t.Context())
		if err != nil || !reflect.DeepEqual(got, event{kind: kind, object: want, resourceVersion: "7"}) {
			t.Errorf("%s: got %+v, %v", kind, got, err)
		}
	}
	for _, ref := range []volume.Ref{configMapRef("a"), secretRef("a")} { // bookmarks of these name no object
		got, err := read(t, body(t, bookmark(ref, 7))).next(t.Context())
		if err != nil || !reflect.DeepEqual(got, event{kind: watch.Bookmark, resourceVersion: "7", initialEventsEnd: true}) {
			t.Errorf("the end of the initial events: got %+v, %v", got, err)
		}
	}
	got, err := read(t, body(t, eventOf(watch.Bookmark, cm))).next(t.Context())
	if err != nil || !reflect.DeepEqual(got, event{kind: watch.Bookmark, resourceVersion: "7"}) {
		t.Errorf("a bookmark: got %+v, %v", got, err)
	}
	if _, err := read(t, body(t, eventOf(watch.Error, statusObject()))).next(t.Context()); !apierrors.IsResourceExpired(err) {
		t.Errorf("an error: got %v", err)
	}
	other := fullConfigMap()
	other.Name = "b"
	got, err = read(t, body(t, eventOf(watch.Added, other), eventOf(watch.Deleted, cm))).next(t.Context())
	if err != nil || !reflect.DeepEqual(got, event{kind: watch.Deleted, object: want, resourceVersion: "7"}) {
		t.Errorf("after an event of another object: got %+v, %v", got, err)
	}
}

// TestUnreadableEvents: an event that cannot be decoded does not end the watch, and the following events can be read.
func TestUnreadableEvents(t *testing.T) {
	for name, unreadable := range map[string]any{
		"no event":             "hunter2",
		"empty":                "",
		"no object":            metav1.WatchEvent{Type: "ADDED"},
		"JSON":                 metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: []byte(`{"kind":"Secret","apiVersion":"v1"}`)}},
		"an object of no kind": metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: []byte("k8s\x00")}},
		"another kind":         eventOf(watch.Added, &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}),
		"an error of no kind":  eventOf(watch.Error, fullConfigMap()),
		"an object's status":   eventOf(watch.Added, statusObject()),
	} {
		from := read(t, body(t, unreadable, eventOf(watch.Added, fullConfigMap())))
		if _, err := from.next(t.Context()); !errors.Is(err, errUnreadable) || err.Error() != errUnreadable.Error() {
			t.Errorf("%s: got %v, want only %v", name, err, errUnreadable)
		}
		if e, err := from.next(t.Context()); err != nil || e.object.Ref != configMapRef("a") {
			t.Errorf("after %s: got %+v, %v", name, e, err)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (r readerFunc) Read(p []byte) (int, error) { return r(p) }

// TestAFrameThatIsTooLong is not read.
func TestAFrameThatIsTooLong(t *testing.T) {
	fails := readerFunc(func([]byte) (int, error) { return 0, errors.New("it is read") })
	from := read(t, io.MultiReader(strings.NewReader("\xff\xff\xff\xff"), fails))
	if _, err := from.next(t.Context()); !errors.Is(err, errUnreadable) || errors.Is(err, errEnded) {
		t.Errorf("a frame of 4 GiB: %v", err)
	}
	from = read(t, io.MultiReader(strings.NewReader("\x01\x00\x00\x00"), fails))
	if _, err := from.next(t.Context()); !errors.Is(err, errEnded) {
		t.Errorf("a frame of 16 MiB: %v", err)
	}
}
