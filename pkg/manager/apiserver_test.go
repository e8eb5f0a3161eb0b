package manager

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/internal/apitest"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// apiServer answers the get and list requests of a real client in the API's own JSON, and its watch requests in protobuf. It is the
// client's HTTP transport and uses no network, so it may be used in a synctest bubble.
//
// mu guards everything below it. Each open watch is a goroutine that ends with the request's context, with the client's Close, or with
// closeWatches.
type apiServer struct {
	t testing.TB

	// paced paces the requests of all clients.
	paced *requests.Requests

	mu sync.Mutex
	apitest.Objects
	wake map[volume.Ref]chan struct{} // closed and removed at each change
	cut  chan struct{}                // closed and replaced by closeWatches
	open map[volume.Ref]int
	seen []apiRequest

	// Deviations from the usual behaviour. refuse returns the error with which a request fails, or nil. hold returns what a request waits
	// for, or nil.
	noWatchList bool
	refuse      func(apiRequest) error
	hold        func(apiRequest) <-chan struct{}
	// lost means that watches send nothing after their initial state.
	lost bool
	// compacted is the oldest resourceVersion that a watch may start from.
	compacted int
}

type apiRequest struct {
	ref                 volume.Ref
	get, watch, initial bool
	rv, timeout         string
	// account is the account whose rights the request carries, or none for the client's own.
	account volume.ServiceAccount
	at      time.Time
}

// nodeRef stands for the Node of a manager.
var nodeRef = volume.Ref{Kind: "Node", Name: testNode}

// coreScheme is made once, because that takes long with the race detector.
var coreScheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, corev1.AddToScheme(scheme)
})

func newAPIServer(t testing.TB) *apiServer {
	return &apiServer{
		t: t, paced: requests.New(), Objects: apitest.Objects{RV: 100, Changes: map[volume.Ref][]apitest.Change{}},
		open: map[volume.Ref]int{}, wake: map[volume.Ref]chan struct{}{}, cut: make(chan struct{}),
	}
}

func (s *apiServer) client() *apiclient.Client {
	cfg := &rest.Config{Host: "http://api.test", QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	return must.Get(apiclient.New(cfg, &http.Client{Transport: s.paced.Wrap(s, true)}))(s.t)
}

func (s *apiServer) put(obj metav1.Object) volume.Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	ref, kind := refOf(obj), watch.Added
	obj.SetUID(types.UID(fmt.Sprintf("uid-%d", s.RV+1)))
	if old := s.At(ref, s.RV); old != nil {
		kind = watch.Modified
		obj.SetUID(old.GetUID())
	}
	s.record(ref, kind, obj)
	return volume.Version{UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion()}
}

func (s *apiServer) delete(ref volume.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	obj := s.At(ref, s.RV)
	if obj == nil {
		s.t.Errorf("delete %s: it doesn't exist", ref)
		return
	}
	s.record(ref, watch.Deleted, obj.(runtime.Object).DeepCopyObject().(metav1.Object))
}

func (s *apiServer) record(ref volume.Ref, kind watch.EventType, obj metav1.Object) {
	s.Add(ref, kind, obj)
	if wake := s.wake[ref]; wake != nil {
		close(wake)
		delete(s.wake, ref)
	}
}

func (s *apiServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// closeWatches ends every open watch normally.
func (s *apiServer) closeWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

func (s *apiServer) watches(ref volume.Ref) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[ref]
}

func (s *apiServer) requests(ref volume.Ref) []apiRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []apiRequest
	for _, r := range s.seen {
		if r.ref == ref {
			out = append(out, r)
		}
	}
	return out
}

// RoundTrip serves one request.
func (s *apiServer) RoundTrip(req *http.Request) (*http.Response, error) {
	r := s.parse(req)
	s.mu.Lock()
	s.seen = append(s.seen, r)
	refuse, hold := s.refuse, s.hold
	s.mu.Unlock()
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	if hold != nil {
		if gate := hold(r); gate != nil {
			select {
			case <-gate:
			case <-req.Context().Done():
				return nil, req.Context().Err()
			case <-time.After(requests.AnswerTimeout): // as a transport with that ResponseHeaderTimeout
				return nil, os.ErrDeadlineExceeded
			}
		}
	}
	if refuse != nil {
		if err := refuse(r); err != nil {
			return failure(err)
		}
	}
	switch {
	case r.watch:
		return s.watch(req.Context(), r)
	case r.get:
		return s.get(r)
	}
	return s.list(r)
}

func (s *apiServer) list(r apiRequest) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if asked, _ := strconv.Atoi(r.rv); asked > s.RV {
		return failure(tooLarge())
	}
	items := []any{}
	if obj := s.At(r.ref, s.RV); obj != nil {
		items = append(items, obj)
	}
	return apitest.Answer(http.StatusOK, map[string]any{
		"kind": string(r.ref.Kind) + "List", "apiVersion": "v1", "items": items,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(s.RV)},
	}), nil
}

func (s *apiServer) watch(ctx context.Context, r apiRequest) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := strconv.Atoi(r.rv)
	switch {
	case r.initial && s.noWatchList:
		return failure(apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
	case from > s.RV && r.initial:
		return failure(tooLarge())
	case !r.initial && from < s.compacted:
		return failure(apierrors.NewResourceExpired("too old resource version"))
	}
	var first []*metav1.WatchEvent
	if r.initial {
		from = s.RV
		if obj := s.At(r.ref, from); obj != nil {
			first = append(first, apitest.Event(watch.Added, obj.(runtime.Object)))
		}
		first = append(first, apitest.Bookmark(r.ref, from, true))
	}
	body, w := io.Pipe()
	ctx, hangUp := context.WithCancel(ctx)
	s.open[r.ref]++
	seconds, _ := strconv.Atoi(r.timeout)
	go s.stream(ctx, r.ref, from, first, w, s.cut, s.lost, time.Duration(seconds)*time.Second)
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: apitest.Body{ReadCloser: body, End: hangUp}}, nil
}

// stream writes events until the client, the context or the server ends the watch.
func (s *apiServer) stream(ctx context.Context, ref volume.Ref, from int, events []*metav1.WatchEvent, w *io.PipeWriter, cut chan struct{}, lost bool, lasts time.Duration) {
	defer func() {
		s.mu.Lock()
		s.open[ref]--
		s.mu.Unlock()
		w.Close()
	}()
	stop := context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	defer stop()
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(w)
	end := time.NewTimer(lasts)
	defer end.Stop()
	for {
		for _, e := range events {
			if _, err := frames.Write(apitest.Frame(e)); err != nil {
				return
			}
		}
		s.mu.Lock()
		if events = nil; !lost {
			events, from = s.Between(ref, from, s.RV)
		}
		wake := s.wake[ref]
		if wake == nil {
			wake = make(chan struct{})
			s.wake[ref] = wake
		}
		s.mu.Unlock()
		if len(events) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-cut:
			return
		case <-wake:
		case <-end.C:
			return
		case <-time.After(bookmarkInterval):
			s.mu.Lock()
			if !lost && s.RV >= from { // as a real one: not older than the watch
				events = append(events, apitest.Bookmark(ref, s.RV, true))
			}
			s.mu.Unlock()
		}
	}
}

// bookmarkInterval is the interval of a real API server.
const bookmarkInterval = time.Minute
