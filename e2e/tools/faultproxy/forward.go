package faultproxy

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// ServeHTTP records a request and passes it on, or answers it as the fault says.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, over := p.record(describe(r))
	switch request.Fault {
	case Slow, Stalled:
		select {
		case <-over:
		case <-r.Context().Done():
			return
		}
	case NoHeaders:
		<-r.Context().Done()
		return
	}
	if err := refusal(request.Fault, request); err != nil {
		answer(w, err, p.retryAfterNow())
		return
	}
	if p.noWatchList && request.Initial {
		answer(w, noWatchList(), "")
		return
	}
	switch request.Fault {
	case BadGateway:
		badGateway(w)
		return
	case GoAway:
		w.Header().Set("Connection", "close") // HTTP/2 has GOAWAY for it
	case Stale:
		if p.replay(w, r, request, over) {
			return
		}
	}
	p.pass(w, r, request)
}

// record takes note of a request. It returns the request with the fault that it meets,
// and what is closed when that is over.
func (p *Proxy) record(r Request) (Request, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Fault = p.fault
	for _, only := range p.only {
		if only.match(r) {
			r.Fault = only.fault
		}
	}
	p.requests = append(p.requests, r)
	return r, p.changed
}

// replay gives an old answer again, if there is one. A watch stays open after it, and
// silent, until the fault is over.
func (p *Proxy) replay(w http.ResponseWriter, r *http.Request, request Request, over <-chan struct{}) bool {
	var old *stored
	switch {
	case request.Initial:
		old = p.history.state(request.Object)
	case request.Verb == "LIST":
		old = p.history.list(request.Object)
	}
	if old == nil {
		return false
	}
	maps.Copy(w.Header(), old.header)
	_, _ = w.Write(old.body)
	if request.Initial {
		flush(w)
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}
	return true
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// pass sends the request to the API server, and what comes back to the client.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, request Request) {
	out := r.Clone(r.Context())
	out.RequestURI = ""
	out.URL.Scheme, out.URL.Host, out.Host = p.target.Scheme, p.target.Host, p.target.Host
	response, err := p.forward.RoundTrip(out)
	if err != nil {
		badGateway(w)
		return
	}
	defer response.Body.Close()
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	if request.Verb == "WATCH" && response.StatusCode == http.StatusOK && strings.Contains(response.Header.Get("Content-Type"), "protobuf") {
		p.watching(request.Object, 1)
		defer p.watching(request.Object, -1)
		s := &stream{proxy: p, w: w, request: request, header: response.Header, initial: request.Initial}
		s.run(r, response.Body)
		return
	}
	var body bytes.Buffer
	_, err = io.Copy(w, io.TeeReader(response.Body, &body))
	if err == nil && request.Verb == "LIST" && response.StatusCode == http.StatusOK {
		p.history.keepList(request.Object, response.Header, body.Bytes())
	}
}

func (p *Proxy) watching(o Object, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[o] += n
}

// stream passes one watch on, frame by frame. It belongs to the goroutine of its
// request.
type stream struct {
	proxy   *Proxy
	w       http.ResponseWriter
	request Request
	header  http.Header
	// initial tells that the initial state is still coming, state what came of it.
	initial bool
	state   []byte
}

// run returns when either side or a fault has ended the watch.
func (s *stream) run(r *http.Request, body io.ReadCloser) {
	frames := make(chan []byte)
	done := make(chan struct{})
	var reading sync.WaitGroup
	defer reading.Wait()
	defer body.Close()
	defer close(done)
	reading.Go(func() {
		defer close(frames)
		for {
			frame, err := readFrame(body)
			if err != nil {
				return
			}
			select {
			case frames <- frame:
			case <-done:
				return
			}
		}
	})
	flush(s.w)
	for {
		fault, changed := s.proxy.current()
		if fault == Stalled {
			select {
			case <-changed:
				continue
			case <-r.Context().Done():
				return
			}
		}
		if !s.initial && !s.goOn(fault) {
			return
		}
		if !s.copy(r, frames, fault, changed) {
			return
		}
	}
}

// copy passes frames on until the fault changes or the initial state has ended; it
// returns false at the end of the watch.
func (s *stream) copy(r *http.Request, frames <-chan []byte, fault Fault, changed <-chan struct{}) bool {
	for {
		select {
		case <-r.Context().Done():
			return false
		case <-changed:
			return true
		case frame, ok := <-frames:
			if !ok {
				return false
			}
			ended := s.keep(frame)
			if fault == StalledEvent {
				half := len(frame) / 2
				if !s.send(frame[:half]) {
					return false
				}
				select {
				case <-changed:
				case <-r.Context().Done():
					return false
				}
				frame = frame[half:]
			}
			if !s.send(frame) {
				return false
			}
			if ended {
				return true
			}
			if fault == Stale && !s.initial {
				s.repeatOldest()
			}
		}
	}
}

// send writes a part of the stream; it returns false if the client has gone.
func (s *stream) send(part []byte) bool {
	if _, err := s.w.Write(part); err != nil {
		return false
	}
	flush(s.w)
	return true
}

// keep takes note of a frame, and returns whether the initial state ends with it.
func (s *stream) keep(frame []byte) (ended bool) {
	if s.initial {
		s.state = append(s.state, frame...)
		if !bytes.Contains(frame, []byte(initialEventsEnd)) {
			return false
		}
		s.initial = false
		s.proxy.history.keepState(s.request.Object, s.header, s.state)
		s.state = nil
		return true
	}
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame[4:]); err == nil && event.Type == string(watch.Modified) {
		s.proxy.history.keepEvent(s.request.Object, frame)
	}
	return false
}

// goOn does to an open watch what the fault says; it returns false if that was the end
// of it.
func (s *stream) goOn(fault Fault) bool {
	var last []byte
	switch fault {
	case Gone:
		return s.request.Fault == Gone // it began with the state, which is not refused
	case WatchClosed:
		return false
	case WatchTorn:
		last = []byte{0, 0, 1, 0, 'h', 'a', 'l', 'f'}
	case GoneEvent:
		frame, err := goneFrame()
		if err != nil {
			panic(fmt.Sprintf("faultproxy: %v", err)) // of constant input
		}
		last = frame
	case Stale:
		s.repeatOldest()
		return true
	default:
		return true
	}
	_, _ = s.w.Write(last)
	flush(s.w)
	return false
}

// repeatOldest sends the oldest event of the object once more, if there is one.
func (s *stream) repeatOldest() {
	if event := s.proxy.history.event(s.request.Object); event != nil {
		_, _ = s.w.Write(event)
		flush(s.w)
	}
}
