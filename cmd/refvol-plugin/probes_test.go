package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/mount"
)

// TestProbes: what the kubelet's probes of the plugin's own pod get, and what the status says of the same conditions.
func TestProbes(t *testing.T) {
	failed := errors.New("no answer")
	for _, test := range []struct {
		path                     string
		probe, notShared, rights error
		registered               bool
		code                     int
		body                     string
	}{
		{path: "/healthz", notShared: failed, rights: failed, code: 200, body: "ok\n"},
		{path: "/healthz", probe: failed, registered: true, code: 503, body: "no answer\n"},
		{path: "/readyz", probe: failed, registered: true, code: 200, body: "[+]shared-mounts ok\n[+]rights ok\n[+]registration ok\n"},
		{path: "/readyz", rights: failed, registered: true, code: 503, body: "[+]shared-mounts ok\n[-]rights: no answer\n[+]registration ok\n"},
		{
			path: "/readyz", notShared: failed, code: 503,
			body: "[-]shared-mounts: no answer\n[+]rights ok\n[-]registration: the kubelet has not registered the driver yet\n",
		},
		{path: "/metrics", code: 404, body: "404 page not found\n"}, // by the handler of this test
	} {
		returns := func(err error) func() error { return func() error { return err } }
		ready := readiness(returns(test.notShared), returns(test.rights), func() bool { return test.registered })
		handler := monitoring(func(context.Context) error { return test.probe }, ready, http.NotFoundHandler())
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, test.path, nil))
		if body := answer.Body.String(); answer.Code != test.code || body != test.body {
			t.Errorf("%+v: got %d %q", test, answer.Code, body)
		}
		if test.path != "/readyz" {
			continue
		}
		var want []string
		for line := range strings.Lines(test.body) {
			if reason, isUnmet := strings.CutPrefix(line, "[-]"); isUnmet {
				want = append(want, strings.TrimSpace(reason))
			}
		}
		if got := unmet(ready); !slices.Equal(got, want) {
			t.Errorf("the status says %q, want %q", got, want)
		}
	}
}

// TestWhoReadsNothing: an answer that a client does not read ends, so that others are answered.
func TestWhoReadsNothing(t *testing.T) {
	ended := make(chan error, 1)
	large := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for block := make([]byte, 1<<20); err == nil; _, err = w.Write(block) {
		}
		ended <- err
	})
	server := must.Get(startHTTP("http-address", "127.0.0.1:0", large, 100*time.Millisecond, nil))(t)
	conn := must.Get(net.Dial("tcp", server.address))(t)
	defer conn.Close()
	must.Get(conn.Write([]byte("GET / HTTP/1.1\r\nHost: test\r\n\r\n")))(t)
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the answer ended with %v", err)
	}
	must.Do(t, server.stop())
}

// TestSharedProbe: many requests cause one probe per second, and a request that ends early does not affect other answers.
func TestSharedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := 0
		shared := &sharedProbe{probe: func(ctx context.Context) error {
			probes++
			return ctx.Err()
		}}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var asking sync.WaitGroup
		for range 50 {
			asking.Go(func() {
				if shared.ask(gone) != nil {
					t.Error("the answer is another request's end")
				}
			})
		}
		asking.Wait()
		if probes != 1 {
			t.Errorf("%d probes for 50 requests at once", probes)
		}
		<-time.After(probeAge)
		if err := shared.ask(gone); err != nil || probes != 2 {
			t.Errorf("%d probes a second later, %v", probes, err)
		}
	})
}

// TestNotShared: a plugin that can't tell whether its mounts reach the node publishes, and says so. One that is certain that they don't is not
// ready.
func TestNotShared(t *testing.T) {
	for _, test := range []struct {
		found, want error
		says        string
	}{
		{nil, nil, ""},
		{errors.ErrUnsupported, nil, "Can't tell whether volumes reach the node"},
		{mount.ErrNotShared, mount.ErrNotShared, "Not ready: pods would get empty directories"},
	} {
		var log strings.Builder
		got := notShared(klog.NewContext(t.Context(), leaklog.New(t, &log)), test.found)
		if !errors.Is(got, test.want) || (test.says == "") != (log.Len() == 0) || !strings.Contains(log.String(), test.says) {
			t.Errorf("%v: got %v, and the log says %q", test.found, got, log.String())
		}
	}
}
