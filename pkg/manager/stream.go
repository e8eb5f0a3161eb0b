package manager

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/pkg/volume"
)

var (
	// errEnded is the end of a watch, by the server or by a broken connection. Another watch can continue after the last event.
	errEnded = errors.New("the watch has ended")
	// errUnreadable is an event that cannot be decoded. It doesn't wrap the decoder's error, which may quote values.
	errUnreadable = errors.New("an event of a watch can't be decoded")
)

// event is one event of a watch.
type event struct {
	kind watch.EventType
	// object is the state in the event; nil for a bookmark.
	object          *volume.Object
	resourceVersion string
	// initialEventsEnd marks the bookmark after the state that a watch starts with.
	initialEventsEnd bool
}

// present returns the object after the event, or nil if it was deleted.
func (e *event) present() *volume.Object {
	if e.kind == watch.Deleted {
		return nil
	}
	return e.object
}

// stream is the answer to one watch request. It is used by one goroutine.
type stream struct {
	body    io.Reader
	decoder runtime.Decoder
	ref     volume.Ref
	// inFlight limits the memory of events. release ends the turn of the last one; nil if it has ended.
	inFlight *inFlight
	release  func()
}

// maxFrame is the longest event that is read, in bytes, as in client-go. Objects have at most a tenth of that.
const maxFrame = 16 << 20

// settled says that the cache counts the last event now, or that it is gone. It is idempotent.
func (s *stream) settled() {
	if s.release != nil {
		s.release()
		s.release = nil
	}
}

// next returns the next event of the object. It waits until there is room for the event, which counts as in flight until the caller calls
// settled, or next. The error wraps errEnded or errUnreadable, or is the API error that the server sent as an
// event.
//
// Each event is a frame: its length and a WatchEvent in protobuf. Most watches are idle nearly all the time, so the memory of a frame is
// not kept between events. client-go's stream decoder keeps 1 KB plus the longest frame that it has read.
func (s *stream) next(ctx context.Context) (event, error) {
	for {
		frame, err := s.readFrame(ctx)
		if err != nil {
			return event{}, err
		}
		e, err := decodeEvent(s.decoder, frame)
		if err != nil || e.object == nil || e.object.Ref == s.ref { // a real API server sends no other object
			return e, err
		}
	}
}

func (s *stream) readFrame(ctx context.Context) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(s.body, head[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errEnded, err)
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxFrame {
		return nil, fmt.Errorf("%w: it has %d bytes", errUnreadable, length)
	}
	if length > smallEvent {
		s.settled() // a large event must not wait for itself
		release, err := s.inFlight.take(ctx, int64(length))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errEnded, err)
		}
		s.release = release
	}
	frame := make([]byte, length)
	if _, err := io.ReadFull(s.body, frame); err != nil {
		return nil, fmt.Errorf("%w: %w", errEnded, err)
	}
	return frame, nil
}

// decodeEvent decodes a WatchEvent. decoder decodes the object in it.
func decodeEvent(decoder runtime.Decoder, frame []byte) (event, error) {
	var raw metav1.WatchEvent
	if err := raw.Unmarshal(frame); err != nil {
		return event{}, errUnreadable
	}
	obj, err := runtime.Decode(decoder, raw.Object.Raw)
	if err != nil {
		return event{}, errUnreadable
	}
	kind := watch.EventType(raw.Type)
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
		of, ok := obj.(metav1.Object)
		e.initialEventsEnd = ok && of.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
	}
	return e, nil
}
