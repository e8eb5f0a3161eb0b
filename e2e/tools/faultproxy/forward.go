package faultproxy

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// stored is an answer as it was passed on, and answerKey what it is to: "LIST", the "state" of a watch, or an
// "event".
type (
	stored struct {
		header http.Header
		body   []byte
	}
	answerKey struct {
		Object
		kind string
	}
)

// keep keeps an answer, unless there is an older one.
func (p *Proxy) keep(o Object, kind string, header http.Header, body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.oldest[answerKey{o, kind}]; !ok {
		p.oldest[answerKey{o, kind}] = stored{header.Clone(), body}
	}
}

func (p *Proxy) kept(o Object, kind string) (stored, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, ok := p.oldest[answerKey{o, kind}]
	return old, ok
}

// ServeHTTP records a request and passes it on, or answers it as the fault says.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, over := p.record(describe(r))
	if request.Fault == NoHeaders {
		over = nil
	}
	if request.Fault == Stalled || request.Fault == NoHeaders {
		select {
		case <-over:
		case <-r.Context().Done():
			return
		}
	}
	refused := refusal(request.Fault, request)
	if refused == nil && p.opts.NoWatchList && request.Initial {
		refused = apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	}
	switch {
	case refused != nil:
		answer(w, refused)
	case request.Fault == BadGateway:
		badGateway(w)
	case request.Fault == Stale && p.replay(w, r, request, over):
	default:
		if request.Fault == GoAway {
			w.Header().Set("Connection", "close") // HTTP/2 has GOAWAY for it
		}
		p.pass(w, r, request)
	}
}

// record takes note of a request. It returns the request with the fault that it meets, and what is closed when that
// is over.
func (p *Proxy) record(r Request) (_ Request, over <-chan struct{}) {
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

// answer writes a Status, in JSON, which every client takes.
func answer(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", "application/json")
	if status.Code == http.StatusTooManyRequests || status.Code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1") // the API server says it in both places
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	}
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// badGateway answers as a load balancer does.
func badGateway(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(http.StatusBadGateway)
	_, _ = io.WriteString(w, "<html><body>502 Bad Gateway</body></html>\n")
}

// replay gives an old answer again, if there is one. A watch stays open after it, and silent, until the fault is
// over.
func (p *Proxy) replay(w http.ResponseWriter, r *http.Request, request Request, over <-chan struct{}) bool {
	kind := request.Verb
	if request.Initial {
		kind = "state"
	}
	old, ok := p.kept(request.Object, kind)
	if !ok {
		return false
	}
	maps.Copy(w.Header(), old.header)
	send(w, old.body)
	if request.Initial {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}
	return true
}

// send writes a part of an answer at once; whether the client has gone shows elsewhere.
func send(w http.ResponseWriter, part []byte) {
	_, _ = w.Write(part)
	_ = http.NewResponseController(w).Flush()
}

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
		p.watch(w, r, request, response)
		return
	}
	var body bytes.Buffer
	_, err = io.Copy(w, io.TeeReader(response.Body, &body))
	if err == nil && request.Verb == "LIST" && response.StatusCode == http.StatusOK {
		p.keep(request.Object, "LIST", response.Header, body.Bytes())
	}
}

func (p *Proxy) watching(o Object, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[o] += n
}

// watch passes a watch on, frame by frame, until either side or a fault ends it.
func (p *Proxy) watch(w http.ResponseWriter, r *http.Request, request Request, response *http.Response) {
	frames := make(chan []byte)
	go func() { // ends with the request
		defer close(frames)
		for {
			frame, err := readFrame(response.Body)
			if err != nil {
				return
			}
			select {
			case frames <- frame:
			case <-r.Context().Done():
				return
			}
		}
	}()
	send(w, nil)
	// state is what has come of the initial state, while that is coming.
	initial, state := request.Initial, []byte(nil)
	for {
		fault, changed := p.current()
		next := frames
		switch {
		case fault == Stalled:
			next = nil
		case initial:
		case fault == Stale:
			if event, ok := p.kept(request.Object, "event"); ok {
				send(w, event.body)
			}
		case fault == WatchTorn:
			send(w, []byte{0, 0, 1, 0, 'h', 'a', 'l', 'f'})
			return
		case fault == GoneEvent:
			send(w, goneFrame())
			return
		case fault == WatchClosed, fault == Gone && request.Fault != Gone: // one that begins with the state is not refused
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		case frame, ok := <-next:
			if !ok {
				return
			}
			var event metav1.WatchEvent
			switch {
			case initial:
				state = append(state, frame...)
				if bytes.Contains(frame, []byte(metav1.InitialEventsAnnotationKey)) {
					initial = false
					p.keep(request.Object, "state", response.Header, state)
				}
			case event.Unmarshal(frame[4:]) == nil && event.Type == string(watch.Modified):
				p.keep(request.Object, "event", nil, frame)
			}
			send(w, frame)
		}
	}
}

// readFrame returns the next frame of a watch in protobuf: four bytes of length, and an event of that length.
func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > 16<<20 {
		return nil, fmt.Errorf("a frame of %d bytes: not a watch in protobuf", size)
	}
	frame := make([]byte, 4+size)
	copy(frame, head)
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// goneFrame returns the frame of an event that says that the watch's resourceVersion has expired.
func goneFrame() []byte {
	status := apierrors.NewResourceExpired("too old resource version").Status()
	return eventFrame(watch.Error, &status)
}

// eventFrame returns the frame of an event, as readFrame does.
func eventFrame(kind watch.EventType, object runtime.Object) []byte {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	encoded, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Version: "v1"}), object)
	if err != nil {
		panic(fmt.Sprintf("faultproxy: encode an event: %v", err)) // of the proxy's own
	}
	event := &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: encoded}}
	body, err := event.Marshal()
	if err != nil {
		panic(fmt.Sprintf("faultproxy: encode an event: %v", err))
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}
