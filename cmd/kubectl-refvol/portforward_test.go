package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// ask sends a request to the plugin through the API server of a URL.
func ask(ctx context.Context, t *testing.T, url string) error {
	t.Helper()
	config := &rest.Config{Host: url}
	client, err := kubernetes.NewForConfig(config)
	request, wrong := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:9811/", http.NoBody)
	if err = errors.Join(err, wrong); err != nil {
		t.Error(err)
		return err
	}
	response, err := (&podTransport{config, client.CoreV1().RESTClient(), "refvol-system", "plugin-1"}).RoundTrip(request)
	if err == nil {
		response.Body.Close()
	}
	return err
}

var errEnough = errors.New("long enough")

// TestANodeThatDoesNotAnswer: a request ends with its context, also while a stream is not acknowledged.
func TestANodeThatDoesNotAnswer(t *testing.T) {
	release := make(chan struct{})
	ctx, cancel := context.WithCancelCause(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.Error(w, "no WebSocket", http.StatusBadRequest)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(httpstream.Stream, <-chan struct{}) error {
			cancel(errEnough)
			<-release
			return nil
		})
		if connection != nil {
			defer connection.Close()
			<-release
		}
	}))
	defer server.Close()
	defer close(release)
	began := time.Now()
	if err := ask(ctx, t, server.URL); !errors.Is(err, errEnough) || time.Since(began) > 20*time.Second {
		t.Errorf("got %v after %s", err, time.Since(began))
	}
}

// hangingServer does not answer an upgrade, and closed receives when a client gives up. A server that knows no WebSocket refuses it at once.
func hangingServer(t *testing.T, knowsWebSocket bool) (url string, closed <-chan struct{}) {
	t.Helper()
	ended := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && !knowsWebSocket {
			http.Error(w, "no WebSocket", http.StatusBadRequest)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1)) // returns when the client closes
		ended <- struct{}{}
	}))
	t.Cleanup(server.Close)
	return server.URL, ended
}

// TestAnAPIServerThatDoesNotAnswer: the connections of a request end with its context, also while the API server, or a proxy in front of
// it, has not answered the upgrade.
func TestAnAPIServerThatDoesNotAnswer(t *testing.T) {
	for name, knowsWebSocket := range map[string]bool{"WebSocket": true, "SPDY": false} {
		t.Run(name, func(t *testing.T) {
			url, closed := hangingServer(t, knowsWebSocket)
			ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, errEnough) // a WebSocket handshake obeys only a deadline
			defer cancel()
			if err := ask(ctx, t, url); !errors.Is(err, errEnough) {
				t.Errorf("got %v", err)
			}
			select {
			case <-closed:
			case <-time.After(20 * time.Second):
				t.Error("the connection stays open")
			}
		})
	}
}

// TestDeadNodesCollectNothing: with -w a plugin that never answers is asked again and again. Each try frees its resources at its end.
func TestDeadNodesCollectNothing(t *testing.T) {
	const rounds, atOnce = 4, 50
	url, _ := hangingServer(t, true)
	before := runtime.NumGoroutine()
	for range rounds {
		var round sync.WaitGroup
		for range atOnce {
			round.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if ask(ctx, t, url) == nil {
					t.Error("a dead node answered")
				}
			})
		}
		round.Wait()
	}
	enough, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for runtime.NumGoroutine() > before+atOnce && enough.Err() == nil {
		pause(enough, 10*time.Millisecond)
	}
	if now := runtime.NumGoroutine(); now > before+atOnce {
		t.Errorf("%d goroutines after %d questions, %d before", now, rounds*atOnce, before)
	}
}

// fakePods are the pods of an API server. watch is the present watch, and err is what a new one fails with. mu protects err.
type fakePods struct {
	list  []corev1.Pod
	watch *apiwatch.FakeWatcher
	mu    sync.Mutex
	err   error
}

func (f *fakePods) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakePods) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: f.list}, nil
}

func (f *fakePods) Watch(context.Context, metav1.ListOptions) (apiwatch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	f.watch = apiwatch.NewFake()
	return f.watch, nil
}

// IsWatchListSemanticsUnSupported makes client-go list the pods first.
func (*fakePods) IsWatchListSemanticsUnSupported() bool { return true }

// TestPodWatch: the pods are those of the last event. While no watch can begin, they are not known.
func TestPodWatch(t *testing.T) {
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil                         //nolint:reassign // The last of them waits for the time of the machine.
	defer func() { utilruntime.ErrorHandlers = handlers }() //nolint:reassign // As above.
	synctest.Test(t, func(t *testing.T) {
		pod := func(name, version string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: version}}
		}
		f, w := &fakePods{list: []corev1.Pod{*pod("a", "1")}}, newPodWatch()
		ctx, cancel := context.WithCancel(t.Context())
		go w.follow(ctx, f)
		want := func(count int) {
			t.Helper()
			synctest.Wait()
			if pods, err := w.pods(ctx); err != nil || len(pods) != count {
				t.Errorf("got %d pods and %v, want %d", len(pods), err, count)
			}
		}
		want(1)
		f.watch.Add(pod("b", "2"))
		want(2)
		f.watch.Delete(pod("a", "3"))
		want(1)
		f.fail(apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("may not watch")))
		f.watch.Stop()
		<-time.After(time.Minute)
		if pods, err := w.pods(ctx); !apierrors.IsForbidden(err) {
			t.Errorf("got %d pods and %v", len(pods), err)
		}
		f.fail(nil)
		<-time.After(time.Minute)
		want(1)
		cancel()
		synctest.Wait()
	})
}

// TestPodWatchBegins: a caller waits until the pods are known, but not longer than it may.
func TestPodWatchBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if pods, err := newPodWatch().pods(ctx); err == nil || err.Error() != "the API server has not sent all pods" || time.Since(began) != requestTimeout {
			t.Errorf("got %d pods and %v after %s", len(pods), err, time.Since(began))
		}
	})
}
