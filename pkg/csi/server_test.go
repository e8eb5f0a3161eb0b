package csi

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestNewRefusesBadOptions(t *testing.T) {
	const required = "DriverName, Version, NodeName, Publisher: Required value"
	for _, test := range []struct {
		change func(o *Options)
		want   string
	}{
		{func(o *Options) { o.DriverName = "" }, required},
		{func(o *Options) { o.Version = "" }, required},
		{func(o *Options) { o.NodeName = "" }, required},
		{func(o *Options) { o.Publisher = nil }, required},
		{func(o *Options) { o.DrainTimeout = 0 }, "DrainTimeout: Invalid value: 0s: must be positive"},
		{func(o *Options) { o.Endpoint = "" }, `Endpoint: Invalid value: "": must be unix:// and an absolute path`},
		{func(o *Options) { o.Endpoint = "/csi.sock" }, `Endpoint: Invalid value: "/csi.sock": must be unix:// and an absolute path`},
		{func(o *Options) { o.Endpoint = "unix://csi.sock" }, `Endpoint: Invalid value: "unix://csi.sock": must be unix:// and an absolute path`},
		{func(o *Options) { o.Endpoint = "tcp://0.0.0.0:1" }, `Endpoint: Invalid value: "tcp://0.0.0.0:1": must be unix:// and an absolute path`},
	} {
		o := Options{
			DriverName: testDriver, Version: "v1", NodeName: "node-1", Endpoint: "unix:///csi/csi.sock",
			Publisher: &fakePublisher{}, DrainTimeout: time.Second,
		}
		test.change(&o)
		if _, err := New(o); err == nil || err.Error() != "csi options: "+test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
	}
}

// wantSockets fails the test unless the directories of both sockets hold just these.
func (s *testServer) wantSockets(want ...string) {
	s.Helper()
	for _, path := range []string{s.path, s.registrationPath} {
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil {
			s.Fatal(err)
		}
		for _, entry := range entries {
			found := filepath.Join(filepath.Dir(path), entry.Name())
			if len(want) == 0 || (found != want[0] && found != want[len(want)-1]) {
				s.Errorf("left is %s", found)
			}
		}
	}
}

func TestSocketsAreForRootOnlyAndGoAtTheEnd(t *testing.T) {
	s := serve(t, nil)
	for _, path := range []string{s.path, s.registrationPath} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
	s.wantSockets(s.path, s.registrationPath)
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s.wantSockets()
}

// staleSocket leaves a socket behind as a killed process does.
func staleSocket(t *testing.T, path string) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	s := newServer(t, nil)
	staleSocket(t, s.path)
	staleSocket(t, s.registrationPath)
	s.begin()
	s.logs.await("Serving", s.registrationPath)
	if _, err := csi.NewIdentityClient(s.dial(s.path)).Probe(t.Context(), &csi.ProbeRequest{}); err != nil {
		t.Error(err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s.wantSockets()
}

// The kubelet must find both or none.
func TestOneSocketWithoutTheOther(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(o *Options)
		text   string
	}{
		{"no directory for the CSI socket", func(o *Options) { o.Endpoint += "/none/csi.sock" }, "csi.sock: listen unix"},
		{"no registration directory", func(o *Options) { o.RegistrationDir += "/none" }, "-reg.sock: listen unix"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t, test.change)
			s.begin()
			err := <-s.ended
			if err == nil || !strings.HasPrefix(err.Error(), "listen at ") || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v", err)
			}
			s.cancel()
			if entries, err := os.ReadDir(filepath.Dir(s.path)); err != nil || len(entries) > 0 {
				t.Errorf("left is %v, %v", entries, err)
			}
		})
	}
}

func TestAServerThatIsStoppedAtOnce(t *testing.T) {
	for range 20 {
		s := newServer(t, nil)
		s.begin()
		s.cancel()
		if err := <-s.ended; err != nil {
			t.Fatal(err)
		}
		s.wantSockets()
	}
}

// The end may come between the binding of a socket and the first look for a call.
func TestAServerThatIsStoppedBeforeItServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	listener, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := endpoint{path, grpc.NewServer()}
	e.server.Stop()
	if err := e.serve(ctx, listener, time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is still there")
	}
}

func TestACallUnderWayIsDrained(t *testing.T) {
	s := serve(t, nil)
	begun, finish := make(chan struct{}), make(chan struct{})
	s.publisher.publish = func(ctx context.Context) error {
		close(begun)
		<-finish
		return ctx.Err()
	}
	result := make(chan error, 1)
	go func() {
		_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil))
		result <- err
	}()
	<-begun
	s.cancel()
	for { // until no call is taken any more
		conn, err := net.Dial("unix", s.path)
		if err != nil {
			break
		}
		conn.Close()
		runtime.Gosched()
	}
	select {
	case err := <-result:
		t.Errorf("the call was cut: %v", err)
	case err := <-s.ended:
		t.Errorf("the server ended before the call: %v", err)
	default:
	}
	close(finish)
	if err := <-result; err != nil {
		t.Errorf("the call failed: %v", err)
	}
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	s.wantSockets()
}

func TestACallThatTakesTooLongIsCut(t *testing.T) {
	s := serve(t, func(o *Options) { o.DrainTimeout = 10 * time.Millisecond })
	begun, cut := make(chan struct{}), make(chan struct{})
	s.publisher.publish = func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		close(cut)
		return ctx.Err()
	}
	result := make(chan error, 1)
	go func() {
		_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil))
		result <- err
	}()
	<-begun
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	<-cut // the call had ended when the server had
	if code := status.Code(<-result); code != codes.Unavailable && code != codes.Canceled {
		t.Errorf("the caller got %s, which the kubelet takes for final", code)
	}
	s.wantSockets()
}
