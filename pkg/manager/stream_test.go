package manager

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/internal/apitest"
	"github.com/refvol/refvol/internal/must"
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
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(&out)
	for _, e := range events {
		frame, isFrame := e.(string)
		if !isFrame {
			frame = string(apitest.Frame(e.(*metav1.WatchEvent)))
		}
		_, err := frames.Write([]byte(frame))
		must.Do(t, err)
	}
	return &out
}

func read(t testing.TB, body io.Reader) *stream {
	scheme := must.Get(coreScheme())(t)
	return &stream{body: body, decoder: protobuf.NewSerializer(scheme, scheme), ref: configMapRef("a"), inFlight: newInFlight()}
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
	wantEvent := func(want event, events ...any) {
		t.Helper()
		if got, err := read(t, body(t, events...)).next(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	cm, other := fullConfigMap(), fullConfigMap()
	other.Name = "b"
	object := objectOf(t, cm)
	for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, "NEW"} {
		wantEvent(event{kind: kind, object: object, resourceVersion: "7"}, apitest.Event(kind, cm))
	}
	for _, ref := range []volume.Ref{configMapRef("a"), secretRef("a")} { // bookmarks of these name no object
		wantEvent(event{kind: watch.Bookmark, resourceVersion: "7", initialEventsEnd: true}, apitest.Bookmark(ref, 7, true))
	}
	wantEvent(event{kind: watch.Bookmark, resourceVersion: "7"}, apitest.Event(watch.Bookmark, cm))
	deleted := event{kind: watch.Deleted, object: object, resourceVersion: "7"}
	wantEvent(deleted, apitest.Event(watch.Added, other), apitest.Event(watch.Deleted, cm))
	if _, err := read(t, body(t, apitest.Event(watch.Error, statusObject()))).next(t.Context()); !apierrors.IsResourceExpired(err) {
		t.Errorf("an error: got %v", err)
	}
}

// TestUnreadableEvents: an event that cannot be decoded does not end the watch, and the following events can be read.
func TestUnreadableEvents(t *testing.T) {
	for name, unreadable := range map[string]any{
		"no event":             "hunter2",
		"empty":                "",
		"no object":            &metav1.WatchEvent{Type: "ADDED"},
		"JSON":                 &metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: []byte(`{"kind":"Secret","apiVersion":"v1"}`)}},
		"an object of no kind": &metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: []byte("k8s\x00")}},
		"another kind":         apitest.Event(watch.Added, &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}),
		"an error of no kind":  apitest.Event(watch.Error, fullConfigMap()),
		"an object's status":   apitest.Event(watch.Added, statusObject()),
	} {
		from := read(t, body(t, unreadable, apitest.Event(watch.Added, fullConfigMap())))
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

// TestValuesAreNotPartsOfTheAnswer overwrites the answer after it was decoded: a small value must not keep a large answer in memory.
func TestValuesAreNotPartsOfTheAnswer(t *testing.T) {
	cm := configMap("a", "before")
	cm.BinaryData = map[string][]byte{"b": []byte("before")}
	codecs := serializer.NewCodecFactory(newAPIServer(t).client().Scheme())
	for _, info := range codecs.SupportedMediaTypes() {
		for _, obj := range []runtime.Object{secret("a", "before"), cm} {
			var answer bytes.Buffer
			must.Do(t, info.Serializer.Encode(obj, &answer))
			decoded, _, err := info.Serializer.Decode(answer.Bytes(), nil, nil)
			must.Do(t, err)
			got := objectOf(t, decoded)
			for i := range answer.Bytes() {
				answer.Bytes()[i] = 'X'
			}
			for key, value := range got.Data {
				if string(value) != "before" {
					t.Errorf("%s: %s shares the memory of %q with the answer", info.MediaType, got.Ref, key)
				}
			}
			if value, ok := got.BinaryData["b"]; ok && string(value) != "before" {
				t.Errorf("%s: %s shares the memory of its binary data with the answer", info.MediaType, got.Ref)
			}
		}
	}
}

// TestAnnotationsThatAreCutOff: an annotation that is too long never becomes a valid one by its cut, also in the middle of a character.
func TestAnnotationsThatAreCutOff(t *testing.T) {
	for _, end := range []string{"", "x", "é", "xé", "é1"} {
		cm := configMap("a", "1")
		cm.Annotations = map[string]string{volume.RevisionAnnotation: strings.Repeat("r", volume.MaxRevision) + end}
		if got := objectOf(t, cm).Revision; got.IsValid() != (end == "") || len(got) > maxRevision {
			t.Errorf("%q at the end: %q", end, got)
		}
	}
}

// TestLargeEventsTakeTurns: the memory of events that the cache does not count yet is bounded before they are received, however many
// objects of 1 MB a pod names. Small events wait for nothing.
func TestLargeEventsTakeTurns(t *testing.T) {
	const watches, large = 200, smallEvent + 1
	for length, atOnce := range map[uint32]int64{1 << 20: maxInFlight >> 20, smallEvent: watches, large: maxInFlight / large} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			shared := newInFlight()
			var received atomic.Int64
			for range watches {
				body := readerFunc(func([]byte) (int, error) {
					received.Add(1)
					<-ctx.Done()
					return 0, ctx.Err()
				})
				from := &stream{body: io.MultiReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, length)), body), inFlight: shared}
				go func() { _, _ = from.next(ctx) }()
			}
			synctest.Wait()
			if n := received.Load(); n != atOnce {
				t.Errorf("%d events of %d bytes are received at once, want %d", n, length, atOnce)
			}
			cancel()
		})
	}
}

// A stalled connection ends the turn of its event after a second, so that other events don't wait for it.
func TestAStalledEventHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInFlight()
		first, err := f.take(t.Context(), maxInFlight+1) // counts as all there is
		must.Do(t, err)
		began := time.Now()
		second, err := f.take(t.Context(), maxInFlight)
		if err != nil || time.Since(began) != inFlightTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		first() // it is too late, and must not free the room of the second
		if f.bytes.TryAcquire(1) {
			t.Error("there is room beside the second")
		}
		second()
		second()
		if !f.bytes.TryAcquire(maxInFlight) {
			t.Error("some room is not free again")
		}
	})
}
