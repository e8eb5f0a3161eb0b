package manager

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/refvol/refvol/pkg/volume"
)

// TestWatchesInProtobuf has an object live through all that can happen to it, told in
// either encoding.
func TestWatchesInProtobuf(t *testing.T) {
	for _, protobuf := range []bool{false, true} {
		t.Run(fmt.Sprint("protobuf=", protobuf), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				e.api.set(func() { e.api.protobuf = protobuf })
				ref := secretRef("a")
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				e.wantNotFound(ref)
				for _, value := range []string{"1", "", strings.Repeat("2", 1<<20)} {
					v := e.api.put(secret("a", value))
					synctest.Wait()
					e.wantGet(ref, v, value)
				}
				e.api.delete(ref)
				synctest.Wait()
				e.wantNotFound(ref)
				gone := metav1.WatchEvent{Type: "ERROR", Object: runtime.RawExtension{Object: statusObject()}}
				e.api.set(func() { e.api.next = gone })
				v := e.api.put(secret("a", "3"))
				after(maxPause)
				e.wantGet(ref, v, "3")
				requests := e.api.requests(ref)
				if last := requests[len(requests)-1]; len(requests) != 2 || !last.initial {
					t.Errorf("got requests %v, want a second one that asks for the state, as the first watch expired", requests)
				}
			})
		})
	}
}

func statusObject() *metav1.Status {
	status := apierrors.NewResourceExpired("too old resource version").ErrStatus
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return &status
}

// frameOf returns the frame of an event without its length.
func frameOf(t testing.TB, e metav1.WatchEvent) []byte {
	t.Helper()
	var frame bytes.Buffer
	if err := frameEncoder(&frame)(e); err != nil {
		t.Fatal(err)
	}
	return frame.Bytes()[frameHead:]
}

// decodeSlowly is decodeEvent by means of the API's own types.
func decodeSlowly(kind volume.Kind, frame []byte) (event, error) {
	var raw metav1.WatchEvent
	if err := raw.Unmarshal(frame); err != nil {
		return event{}, err
	}
	if raw.Type == string(watch.Error) {
		return event{}, statusOf(raw.Object.Raw)
	}
	obj, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), raw.Object.Raw)
	if err != nil {
		return event{}, err
	}
	converted, err := newSources(nil)[kind].convert(obj)
	if err != nil {
		return event{}, err
	}
	e := event{kind: watch.EventType(raw.Type), object: converted, resourceVersion: converted.ResourceVersion}
	if e.kind == watch.Bookmark {
		e.object = nil
		e.initialEventsEnd = obj.(metav1.Object).GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
	}
	return e, nil
}

// seedFrames are events as servers send them.
func seedFrames(t testing.TB) map[volume.Kind][][]byte {
	immutable, mutable := true, false
	meta := metav1.ObjectMeta{
		Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "7", Generation: 3,
		Labels:        map[string]string{"a": "b"},
		Annotations:   map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "": ""},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{}`)}},
	}
	frames := map[volume.Kind][][]byte{}
	for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, "NEW"} {
		for _, immutable := range []*bool{nil, &mutable, &immutable} {
			for _, obj := range []runtime.Object{
				&corev1.ConfigMap{
					TypeMeta: typeMeta(volume.ConfigMap), ObjectMeta: meta, Immutable: immutable,
					Data: map[string]string{"k": "v", "e": ""}, BinaryData: map[string][]byte{"b": {0, 255}, "n": {}},
				},
				&corev1.ConfigMap{TypeMeta: typeMeta(volume.ConfigMap)},
				bookmark(configMapRef(""), 7).Object.Object,
			} {
				frames[volume.ConfigMap] = append(frames[volume.ConfigMap], frameOf(t, metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: obj}}))
			}
			for _, obj := range []runtime.Object{
				&corev1.Secret{
					TypeMeta: typeMeta(volume.Secret), ObjectMeta: meta, Immutable: immutable, Type: "x",
					Data: map[string][]byte{"k": []byte("v"), "e": {}}, StringData: map[string]string{"s": "t"},
				},
				bookmark(secretRef(""), 7).Object.Object,
			} {
				frames[volume.Secret] = append(frames[volume.Secret], frameOf(t, metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: obj}}))
			}
		}
	}
	failed := frameOf(t, metav1.WatchEvent{Type: "ERROR", Object: runtime.RawExtension{Object: statusObject()}})
	for kind := range frames {
		frames[kind] = append(frames[kind], failed)
	}
	return frames
}

// TestDecodeEvent decodes what servers send by the API's own types too.
func TestDecodeEvent(t *testing.T) {
	for kind, frames := range seedFrames(t) {
		for _, frame := range frames {
			got, err := decodeEvent(kind, frame)
			want, wantErr := decodeSlowly(kind, frame)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || !reflect.DeepEqual(got, want) {
				t.Errorf("%s %q:\ngot  %+v, %v\nwant %+v, %v", kind, frame, got, err, want, wantErr)
			}
			for n := range frame { // cut off anywhere
				if e, err := decodeEvent(kind, frame[:n]); err == nil && e.object != nil && reflect.DeepEqual(e, got) {
					t.Errorf("the first %d of %d bytes of an event give all of it", n, len(frame))
				}
			}
		}
	}
}

// TestDecodeEventOfAnotherKind is refused: its fields have other meanings.
func TestDecodeEventOfAnotherKind(t *testing.T) {
	for kind, frames := range seedFrames(t) {
		other := map[volume.Kind]volume.Kind{volume.Secret: volume.ConfigMap, volume.ConfigMap: volume.Secret}[kind]
		if e, err := decodeEvent(other, frames[0]); !errors.Is(err, errUnreadable) {
			t.Errorf("a %s taken for a %s: got %+v, %v", kind, other, e, err)
		}
	}
}

// TestDecodeEventCopies writes all over the frame afterwards.
func TestDecodeEventCopies(t *testing.T) {
	for kind, frames := range seedFrames(t) {
		want, _ := decodeSlowly(kind, frames[0])
		got, err := decodeEvent(kind, frames[0])
		if err != nil {
			t.Fatal(err)
		}
		for i := range frames[0] {
			frames[0][i] = 'X'
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the event shares memory with its frame", kind)
		}
	}
}

// FuzzDecodeEvent holds the few fields that are decoded here against the API's own types,
// where those can decode a frame at all.
func FuzzDecodeEvent(f *testing.F) {
	for kind, frames := range seedFrames(f) {
		for _, frame := range frames {
			f.Add(kind == volume.Secret, frame)
		}
	}
	f.Fuzz(func(t *testing.T, secret bool, frame []byte) {
		kind := volume.ConfigMap
		if secret {
			kind = volume.Secret
		}
		got, err := decodeEvent(kind, frame)
		want, wantErr := decodeSlowly(kind, frame)
		if wantErr == nil && err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%s %q:\ngot  %+v\nwant %+v", kind, frame, got, want)
		}
	})
}

// TestAFrameThatIsTooLong is not waited for.
func TestAFrameThatIsTooLong(t *testing.T) {
	s := &stream{body: nopCloser{strings.NewReader("\x00\x00\x00\x01x\xff\xff\xff\xff")}, source: newSources(nil)[volume.Secret]}
	if _, err := s.next(); !errors.Is(err, errUnreadable) {
		t.Errorf("a frame without an event: %v", err)
	}
	if _, err := s.next(); !errors.Is(err, errUnreadable) || errors.Is(err, errEnded) {
		t.Errorf("a frame of 4 GiB: %v", err)
	}
	if _, err := s.next(); !errors.Is(err, errEnded) {
		t.Errorf("the end: %v", err)
	}
}

type nopCloser struct{ *strings.Reader }

func (nopCloser) Close() error { return nil }

// BenchmarkDecodeEvent is what an event costs until its object is known: by the fields that
// volumes show, by the API's own types, and by those in JSON.
func BenchmarkDecodeEvent(b *testing.B) {
	cm := configMap("a", strings.Repeat("x", 1<<10))
	cm.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:data":{".":{},"f:k":{}}}`)}}
	e := metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Object: cm}}
	frame := frameOf(b, e)
	text, err := json.Marshal(e)
	if err != nil {
		b.Fatal(err)
	}
	source := newSources(nil)[volume.ConfigMap]
	for name, decode := range map[string]func() (event, error){
		"fields": func() (event, error) { return decodeEvent(volume.ConfigMap, frame) },
		"types":  func() (event, error) { return decodeSlowly(volume.ConfigMap, frame) },
		"json":   func() (event, error) { return newTexts(bytes.NewReader(text), source).next() },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
