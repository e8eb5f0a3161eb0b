package manager

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/pkg/volume"
)

var (
	// errEnded is the end of a watch, by the server or by a broken connection. Another watch
	// can go on from the last event.
	errEnded = errors.New("the watch has ended")
	// errUnreadable is an event that can't be decoded. It doesn't wrap the decoder's error,
	// which may quote values.
	errUnreadable = errors.New("an event of a watch can't be decoded")
)

// event is one event of a watch.
type event struct {
	kind watch.EventType
	// object is the state in the event; nil for a bookmark.
	object          *volume.Object
	resourceVersion string
	// initialEventsEnd marks the bookmark that ends the state which a watch begins with.
	initialEventsEnd bool
	// large says that it takes much memory until the item has it.
	large bool
}

// stream is the answer to one watch request, for one goroutine. Events are decoded when
// they are asked for: nothing is read ahead, and no goroutine waits for them.
type stream struct {
	body    io.ReadCloser
	decoder runtime.Decoder
	opening *opening
	// isOpened says that the opening has ended.
	isOpened bool

	// end ends the request. timer does too, after answerTime, unless answered was called.
	end   context.CancelCauseFunc
	timer *time.Timer
	// cause returns why end or timer ended the request, if one of them did.
	cause func() error
}

// answered says that the server has answered, so that the stream may last.
func (s *stream) answered() { s.timer.Stop() }

// opened records, once, that the opening has ended, or the failure of what came after.
func (s *stream) opened(err error) {
	switch {
	case !s.isOpened:
		s.isOpened = true
		s.opening.end(err)
	case err != nil:
		s.opening.report(err)
	}
}

func (s *stream) close() {
	s.timer.Stop()
	s.end(nil)
	_ = s.body.Close() // it was only read
}

const (
	// frameHead is how many bytes hold the length of a frame.
	frameHead = 4
	// maxFrame is the longest event that is read, as in client-go. Objects have a tenth of
	// that at most.
	maxFrame = 16 << 20
	// largeFrame is how long an event must be for its opening to last until the item has taken it, so that few are in
	// memory that are not in the cache.
	largeFrame = 64 << 10
)

// next returns the next event. The error wraps errEnded or errUnreadable, or is the API error
// that the server sent as an event.
//
// Each event is a frame: its length, and a WatchEvent in protobuf. Most watches are idle nearly
// all the time, so the memory for a frame is not kept between events. client-go's stream
// decoder keeps 1 KB, and the longest frame that it has read.
func (s *stream) next() (event, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(s.body, head[:]); err != nil {
		return event{}, fmt.Errorf("%w: %w", errEnded, err)
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxFrame {
		return event{}, fmt.Errorf("%w: it has %d bytes", errUnreadable, length)
	}
	frame := make([]byte, length)
	if _, err := io.ReadFull(s.body, frame); err != nil {
		return event{}, fmt.Errorf("%w: %w", errEnded, err)
	}
	e, err := decodeEvent(s.decoder, frame)
	e.large = length > largeFrame
	return e, err
}

// decodeEvent decodes a WatchEvent. decoder is that of the object in it.
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
		e.initialEventsEnd = endsInitialEvents(obj)
	}
	return e, nil
}

func endsInitialEvents(obj runtime.Object) bool {
	of, ok := obj.(metav1.Object)
	return ok && of.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
