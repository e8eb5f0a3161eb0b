package manager

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

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

// decoder reads events off the answer to a watch request. The error wraps errEnded or
// errUnreadable, or is the API error that the server sent as an event.
type decoder interface {
	next() (event, error)
}

// stream is the answer to one watch request, for one goroutine. Events are decoded when
// they are asked for: nothing is read ahead, and no goroutine waits for them.
type stream struct {
	body    io.ReadCloser
	source  *source
	decoder decoder
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

// next returns the next event; see decoder.
func (s *stream) next() (event, error) {
	if s.decoder == nil {
		if err := s.detect(); err != nil {
			return event{}, err
		}
	}
	return s.decoder.next()
}

// detect finds out how the server encodes events. A frame of protobuf begins with its length
// in four bytes, the first of which is zero for anything that a server sends; JSON begins
// with a brace.
func (s *stream) detect() error {
	var first [frameHead]byte
	if _, err := io.ReadFull(s.body, first[:]); err != nil {
		return fmt.Errorf("%w: %w", errEnded, err)
	}
	if first[0] == 0 {
		s.decoder = &frames{from: s.body, head: first, begun: true, kind: s.source.kind}
		return nil
	}
	s.decoder = newTexts(&prefixed{first[:], s.body}, s.source)
	return nil
}

// prefixed is a stream whose first bytes were read already.
type prefixed struct {
	first []byte
	io.ReadCloser
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.first) == 0 {
		return p.ReadCloser.Read(b)
	}
	n := copy(b, p.first)
	p.first = p.first[n:]
	return n, nil
}

const (
	// frameHead is how many bytes tell the length of a frame.
	frameHead = 4
	// maxFrame is the most that is taken for an event, as in client-go; objects have a
	// tenth of that at most.
	maxFrame = 16 << 20
)

// frames decodes the events of a protobuf stream.
type frames struct {
	from io.Reader
	kind volume.Kind
	// head is the length of the next frame if begun says that it was read already.
	head  [frameHead]byte
	begun bool
}

func (f *frames) next() (event, error) {
	if !f.begun {
		if _, err := io.ReadFull(f.from, f.head[:]); err != nil {
			return event{}, fmt.Errorf("%w: %w", errEnded, err)
		}
	}
	f.begun = false
	length := binary.BigEndian.Uint32(f.head[:])
	if length > maxFrame {
		return event{}, fmt.Errorf("%w: it has %d bytes", errUnreadable, length)
	}
	// Not kept between events: most watches are idle nearly all the time.
	frame := make([]byte, length)
	if _, err := io.ReadFull(f.from, frame); err != nil {
		return event{}, fmt.Errorf("%w: %w", errEnded, err)
	}
	return decodeEvent(f.kind, frame)
}

// texts decodes the events of a JSON stream, which a server sends that has no protobuf.
type texts struct {
	source *source
	from   *json.Decoder
}

func newTexts(from io.Reader, source *source) *texts {
	return &texts{source: source, from: json.NewDecoder(from)}
}

func (t *texts) next() (event, error) {
	var raw metav1.WatchEvent
	if err := t.from.Decode(&raw); err != nil {
		if errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError)) {
			return event{}, errUnreadable
		}
		return event{}, fmt.Errorf("%w: %w", errEnded, err)
	}
	if raw.Type == string(watch.Error) {
		return event{}, statusOf(raw.Object.Raw)
	}
	obj, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), raw.Object.Raw)
	if err != nil {
		return event{}, errUnreadable
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		return event{}, errUnreadable
	}
	e := event{kind: watch.EventType(raw.Type), resourceVersion: meta.GetResourceVersion()}
	if e.kind == watch.Bookmark {
		e.initialEventsEnd = meta.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
		return e, nil
	}
	e.object, err = t.source.convert(obj)
	return e, err
}

// statusOf returns the API error that an event of type ERROR carries.
func statusOf(raw []byte) error {
	obj, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), raw)
	if err != nil {
		return errUnreadable
	}
	if status, ok := obj.(*metav1.Status); ok {
		return apierrors.FromObject(status)
	}
	return errUnreadable
}
