package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/refvol/refvol/pkg/volume"
)

var (
	// errEnded is the end of a watch, in good order or by a broken connection: another can
	// go on from the last event.
	errEnded = errors.New("the watch has ended")
	// errUnreadable is an event that can't be decoded. What decoders say of it may quote
	// values, so it is left out.
	errUnreadable = errors.New("an event of a watch can't be decoded")
)

// event is one event of a watch.
type event struct {
	kind watch.EventType
	// object is what a watch told of an object; nil for a bookmark.
	object          *volume.Object
	resourceVersion string
	// initialEventsEnd marks the bookmark that ends the state which a watch begins with.
	initialEventsEnd bool
}

// stream is the answer to one watch request, for one goroutine. Events are decoded when
// they are asked for: nothing is read ahead, and no goroutine waits for them.
type stream struct {
	body    io.ReadCloser
	events  *eventReader
	opening *opening

	// end ends the request, as timer does, for which answered sets another time; lasts is
	// how long after that.
	end   context.CancelCauseFunc
	timer *time.Timer
	lasts time.Duration
	// cause returns why the request was ended from here, if it was.
	cause func() error
}

// answered lets the stream go on: the server has told what it was asked for.
func (s *stream) answered() { s.timer.Reset(s.lasts) }

func (s *stream) close() {
	s.timer.Stop()
	s.end(nil)
	_ = s.body.Close() // it was only read
}

// next returns the next event; see eventReader.next.
func (s *stream) next() (event, error) { return s.events.next() }

// eventReader reads the events of a watch in protobuf.
type eventReader struct {
	body    *errorReader
	frames  io.ReadCloser
	wrapper runtime.Decoder
	objects runtime.Decoder
}

func newEventReader(body io.ReadCloser, scheme *runtime.Scheme) *eventReader {
	// An event is a WatchEvent without the prefix of an object, and holds an object with it.
	raw := protobuf.NewRawSerializer(scheme, scheme)
	tracked := &errorReader{ReadCloser: body}
	return &eventReader{
		body:    tracked,
		frames:  protobuf.LengthDelimitedFramer.NewFrameReader(tracked),
		wrapper: raw,
		objects: protobuf.NewSerializer(scheme, scheme),
	}
}

// next returns the next event. The error wraps errEnded or errUnreadable, or is the API
// error that the server sent as an event.
func (r *eventReader) next() (event, error) {
	// A decoder keeps a buffer of the largest event that it has read. Most watches are idle
	// nearly all the time, so each event has its own decoder.
	decoder := restwatch.NewDecoder(streaming.NewDecoder(r.frames, r.wrapper), r.objects)
	kind, obj, err := decoder.Decode()
	switch {
	case err != nil && r.body.err != nil:
		return event{}, fmt.Errorf("%w: %w", errEnded, r.body.err)
	case err != nil:
		return event{}, errUnreadable
	}
	if status, ok := obj.(*metav1.Status); ok && kind == watch.Error {
		return event{}, apierrors.FromObject(status)
	}
	converted, err := convert(obj)
	if err != nil || kind == watch.Error {
		return event{}, errUnreadable
	}
	e := event{kind: kind, object: converted, resourceVersion: converted.ResourceVersion}
	if kind == watch.Bookmark {
		e.object = nil
		e.initialEventsEnd = endsInitialEvents(obj)
	}
	return e, nil
}

func endsInitialEvents(obj runtime.Object) bool {
	of, ok := obj.(metav1.Object)
	return ok && of.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

// errorReader remembers how reading failed, which tells the end of a connection from what a
// decoder finds wrong.
type errorReader struct {
	io.ReadCloser
	err error
}

// Read implements io.Reader.
func (r *errorReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.err = err
	return n, err
}
