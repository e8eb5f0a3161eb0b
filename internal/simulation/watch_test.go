package simulation

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/internal/apitest"
	"github.com/refvol/refvol/pkg/volume"
)

type stream struct {
	ref  volume.Ref
	from int // what it has sent
	to   *io.PipeWriter
	// cuts is the number of cuts when it began. isTorn means that a cut leaves half a frame.
	cuts   int
	isTorn bool
	lasts  time.Duration
}

// watch opens a stream from the cache, which may be old.
func (s *apiServer) watch(c *call, ref volume.Ref) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := strconv.Atoi(c.version)
	var first []*metav1.WatchEvent
	switch {
	case c.initial && from > s.cacheLocked():
		s.w.Met("too large")
		return tooLarge(), nil
	case !c.initial && from < s.compacted:
		s.w.Met("410")
		if s.w.oneIn(c.key+" 410", 2) {
			return failure(http.StatusGone, metav1.StatusReasonExpired), nil
		}
		gone := &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone}
		gone.SetGroupVersionKind(metav1.Unversioned.WithKind("Status"))
		first = append(first, apitest.Event(watch.Error, gone), nil)
	case c.initial:
		from = s.cacheLocked()
		if s.behind > 0 && c.version == "" {
			s.w.Met("a stale state")
		}
		if obj := s.At(ref, from); obj != nil {
			first = append(first, apitest.Event(watch.Added, obj.(runtime.Object)))
		}
		first = append(first, apitest.Bookmark(ref, from, true))
	}
	body, to := io.Pipe()
	ctx, hangUp := context.WithCancel(c.ctx)
	seconds, _ := strconv.Atoi(c.timeout)
	s.open++
	isTorn := s.faulty && s.w.oneIn(c.key+" torn", 3)
	go s.send(ctx, &stream{ref, from, to, s.cuts, isTorn, time.Duration(seconds) * time.Second}, first)
	header := http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf;stream=watch"}}
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: apitest.Body{ReadCloser: body, End: hangUp}}, nil
}

// send sends events until the client, the timeout or a cut ends the stream. A nil event ends it too.
func (s *apiServer) send(ctx context.Context, to *stream, events []*metav1.WatchEvent) {
	var ending error
	defer func() {
		s.set(func() { s.open-- })
		to.to.CloseWithError(ending)
	}()
	stop := context.AfterFunc(ctx, func() { to.to.CloseWithError(ctx.Err()) })
	defer stop()
	end := time.NewTimer(to.lasts)
	defer end.Stop()
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(to.to)
	for {
		for _, e := range events {
			if e == nil {
				return
			}
			if _, err := frames.Write(apitest.Frame(e)); err != nil {
				return
			}
		}
		var wake chan struct{}
		var isCut bool
		events, wake, isCut = s.next(to)
		if isCut {
			if ending = io.ErrUnexpectedEOF; to.isTorn && len(events) > 0 {
				frame := apitest.Frame(events[0])
				_, _ = to.to.Write(append([]byte{0, 0, 0, byte(min(len(frame), 255))}, frame[:len(frame)/2]...))
				s.w.Met("half a frame")
			}
			s.w.Met("a cut stream")
			return
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-end.C:
			s.w.Met("a watch that ends normally")
			return
		case <-time.After(time.Minute):
			s.set(func() {
				if rv := s.cacheLocked(); rv >= to.from {
					events, to.from = append(events, apitest.Bookmark(to.ref, rv, false)), rv
					s.w.Met("a bookmark")
				}
			})
		}
	}
}

// next returns the events that a stream has not sent, a channel that is closed at the next change, and whether the stream is cut.
func (s *apiServer) next(to *stream) (events []*metav1.WatchEvent, wake chan struct{}, isCut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, to.from = s.Between(to.ref, to.from, s.cacheLocked())
	return events, s.wake, s.cuts != to.cuts
}
