package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
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

	"github.com/refvol/refvol/internal/must"
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

// TestNobodyAnswers: a request ends with its context, and so do its connections, while the API server, or a proxy in front of it, has not answered
// the upgrade, and while the node has not acknowledged a stream. A server that knows no WebSocket refuses it at once.
func TestNobodyAnswers(t *testing.T) {
	for _, name := range []string{"WebSocket", "SPDY", "a stream"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed := make(chan struct{}, 2)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodGet && name != "WebSocket":
					http.Error(w, "no WebSocket", http.StatusBadRequest)
				case name == "a stream":
					holdStream(t, w, r)
				default:
					<-r.Context().Done() // the client has closed the connection
					closed <- struct{}{}
				}
			}))
			t.Cleanup(server.Close)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errEnough) // a WebSocket handshake obeys only a deadline
			defer cancel()
			if err := ask(ctx, t, server.URL); !errors.Is(err, errEnough) {
				t.Errorf("got %v", err)
			}
			if name == "a stream" {
				return
			}
			select {
			case <-closed:
			case <-time.After(20 * time.Second):
				t.Error("the connection stays open")
			}
		})
	}
}

// holdStream upgrades a connection, and never acknowledges a stream.
func holdStream(t *testing.T, w http.ResponseWriter, r *http.Request) {
	t.Helper()
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(httpstream.Stream, <-chan struct{}) error {
		<-t.Context().Done()
		return nil
	})
	if connection != nil {
		<-t.Context().Done()
		connection.Close()
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

// TestPodWatch: the pods are those of the last event. While no watch can begin, they are not known, and a caller waits no longer than it may.
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
		began := time.Now()
		if pods, err := w.pods(ctx); message(err) != "the API server has not sent all pods" || time.Since(began) != requestTimeout {
			t.Errorf("got %d pods and %v after %s", len(pods), err, time.Since(began))
		}
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

// TestCompletion: kubectl completes names, from the API server and from the kubeconfig.
func TestCompletion(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": [{"metadata": {"name": "node-1"}}]}`)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, kubeconfig, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "blue", "clusters": [{"name": "c", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
		"contexts": [{"name": "blue", "context": {"cluster": "c"}}, {"name": "black", "context": {"cluster": "c"}}, {"name": "red", "context": {"cluster": "c"}}]}`, server.URL))
	for _, test := range []struct{ args, want []string }{
		{[]string{"stat"}, []string{"status\tList the volumes of all nodes, the worst first"}},
		{[]string{"status", "--node", "no"}, []string{"node-1"}},
		{[]string{"status", "-n", ""}, []string{"node-1"}},
		{[]string{"status", "--context", "bl"}, []string{"black", "blue"}},
		{[]string{"converged", "s"}, []string{"secret/"}},
		{[]string{"converged", "configmap/n"}, []string{"configmap/node-1"}},
		{[]string{"converged", "pod/n"}, nil},
	} {
		out, _, err := runCommand(t, append([]string{"__complete", "--kubeconfig", kubeconfig}, test.args...)...)
		got := strings.Split(strings.TrimSpace(out), "\n")
		if got = got[:len(got)-1]; err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%q: %v, got %q, want %q", test.args, err, got, test.want)
		}
	}
}

// TestNoRequestTimeout: 0 means no limit, as with kubectl, also in a pod without a kubeconfig.
func TestNoRequestTimeout(t *testing.T) {
	for set, want := range map[string]time.Duration{"": requestTimeout, "0": 0, "0s": 0, "7": 7 * time.Second, "1m": time.Minute} {
		flags, timeout := newConfigFlags()
		if set != "" {
			must.Do(t, timeout.Set(set))
		}
		*flags.APIServer = "http://127.0.0.1:1"
		config, err := flags.ToRESTConfig()
		if err != nil || config.Timeout != want {
			t.Errorf("--request-timeout=%s: %v, %v, want %s", set, config.Timeout, err, want)
		}
	}
}

// soon is much more than a command needs to notice that it must end.
const soon = 10 * time.Second

// TestSilentServer: an interruption ends each command at once, and --timeout ends it in time, although the API server never answers.
func TestSilentServer(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	t.Setenv("HOME", t.TempDir())
	manifest := filepath.Join(t.TempDir(), "pod.yaml")
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, envFrom: [{secretRef: {name: db}}]}]}\n"
	writeFile(t, manifest, text)
	for _, line := range []string{
		"converged secret/db --timeout=200ms",
		"converged deployment/web --timeout=200ms",
		"converged secrets -l app=web",
		"converged secret/db --watch",
		"rollout configmap/app --timeout=200ms",
		"rollout configmap/app",
		"rollout status",
		"rollout abort configmap/app",
		"status",
		"status -w",
		"uninstall-check",
		"check --live -f " + manifest,
		"check --label=restart",
	} {
		t.Run(line, func(t *testing.T) {
			isTimed := strings.Contains(line, "--timeout=200ms")
			ctx, interrupt := context.WithTimeout(t.Context(), soon)
			defer interrupt()
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if !isTimed {
					interrupt()
				}
				<-r.Context().Done()
			}))
			defer server.Close()
			args := append(strings.Fields(line), "--server="+server.URL, "-n=shop", "--request-timeout=0")
			var out bytes.Buffer
			err := run(ctx, newRootCommand(), args, &out, &out)
			if isLate := errors.Is(ctx.Err(), context.DeadlineExceeded); exitStatus(err) != unknown || isLate {
				t.Errorf("it ended with %v, late %t\n%s", err, isLate, &out)
			}
		})
	}
}
