package csi

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/internal/must"
)

// wantSockets fails the test unless the directories of both sockets contain exactly these.
func (s *testServer) wantSockets(want ...string) {
	s.Helper()
	for _, path := range []string{s.path, s.registrationPath} {
		entries := must.Get(os.ReadDir(filepath.Dir(path)))(s)
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
		info := must.Get(os.Lstat(path))(t)
		if info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
	s.wantSockets(s.path, s.registrationPath)
	if lines := s.logs.With("Serving"); len(lines) != 2 || !strings.Contains(lines[1], s.registrationPath) {
		t.Errorf("the kubelet sees the driver before it can call it: %q", lines)
	}
	must.Do(t, s.stop())
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
	must.Do(t, s.stop())
	<-cut // the call ended before the server did
	if code := status.Code(<-result); code != codes.Unavailable && code != codes.Canceled {
		t.Errorf("the caller got %s, which the kubelet takes for final", code)
	}
	s.wantSockets()
}

func TestWhatIsNotASocketIsNotReplaced(t *testing.T) {
	registers := func(s *testServer) string { return s.registrationPath } // the socket of CSI is made before this, and must go again
	dangle := func(path string) error { return os.Symlink("nowhere", path) }
	for _, test := range []struct {
		name string
		at   func(s *testServer) string
		make func(path string) error
	}{
		{"file", registers, func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) }},
		{"directory", registers, func(path string) error { return os.Mkdir(path, 0o700) }},
		{"dangling link", registers, dangle},
		{"dangling link for CSI", func(s *testServer) string { return s.path }, dangle},
		{"link to a socket", registers, func(path string) error {
			listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Dir(path) + "-other.sock", Net: "unix"})
			if err != nil {
				return err
			}
			listener.SetUnlinkOnClose(false)
			return errors.Join(listener.Close(), os.Symlink(filepath.Dir(path)+"-other.sock", path))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t, nil)
			path := test.at(s)
			must.Do(t, test.make(path))
			before := must.Get(os.Lstat(path))(t)
			s.begin()
			err := <-s.ended
			if want := "listen at " + path + ": there is something that is not a socket"; err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			s.cancel()
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it is gone: %v", err)
			}
			s.wantSockets(path)
		})
	}
}

// A mode that is set by path could be set on another file meanwhile, and until then everybody whom the umask allows could use the socket.
func TestASocketIsMadeWithItsMode(t *testing.T) {
	dir := t.TempDir()
	events := must.Get(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC))(t)
	defer unix.Close(events)
	must.Get(unix.InotifyAddWatch(events, dir, unix.IN_ATTRIB))(t)
	listener := must.Get(listen(t.Context(), filepath.Join(dir, "csi.sock")))(t)
	defer listener.Close()
	if n, err := unix.Read(events, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the socket was changed after it was made (%d bytes of events, %v)", n, err)
	}
}

// The socket of a process that was killed is replaced.
func TestAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	stale := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	stale.SetUnlinkOnClose(false)
	must.Do(t, stale.Close())
	must.Do(t, must.Get(listen(t.Context(), path))(t).Close())
}

// TestRegistration: the server is ready while the driver is registered. A refusal is logged once for each reason, and again after a
// registration.
func TestRegistration(t *testing.T) {
	s := serve(t, nil)
	for _, reason := range []string{"no", "no", "never"} {
		must.Get(s.registrar.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{Error: reason}))(t)
	}
	if lines := s.logs.With("Kubelet refused to register the driver"); len(lines) != 2 || s.IsReady() {
		t.Errorf("refused, ready: %t, and the log has %q", s.IsReady(), lines)
	}
	must.Get(s.registrar.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true}))(t)
	if !s.IsReady() {
		t.Error("registered, and not ready")
	}
	must.Get(s.registrar.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{Error: "never"}))(t)
	if lines := s.logs.With("Kubelet refused to register the driver"); len(lines) != 3 || s.IsReady() {
		t.Errorf("refused again for the last reason, ready: %t, and the log has %q", s.IsReady(), lines)
	}
}

// TestOptions: what is missing is an error, and what may be missing is none.
func TestOptions(t *testing.T) {
	opts := newServer(t, nil).opts
	opts.DrainTimeout = 0
	if _, err := New(opts); err == nil || err.Error() != "csi options: DrainTimeout: Invalid value: 0s: must be positive" {
		t.Error(err)
	}
	opts.Publisher = nil
	if _, err := New(opts); err == nil || err.Error() != "csi options: DriverName, Version, NodeName, Publisher: Required value" {
		t.Error(err)
	}
}

// newLock returns a context whose log is kept, and the path of a socket.
func newLock(t *testing.T) (ctx context.Context, logs *leak.Log, socket string) {
	t.Helper()
	logs = &leak.Log{}
	return klog.NewContext(t.Context(), leaklog.New(t, logs)), logs, filepath.Join(t.TempDir(), "csi.sock")
}

func TestLockRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(path string) error
		want    string
	}{
		"link to a file": {func(path string) error {
			target := filepath.Join(filepath.Dir(path), "precious")
			return errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, path))
		}, "too many levels of symbolic links"},
		"dangling link": {func(path string) error { return os.Symlink("nowhere", path) }, "too many levels of symbolic links"},
		"directory":     {func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		"pipe":          {func(path string) error { return unix.Mkfifo(path, 0o600) }, "there is something that is not a file"},
		"no directory":  {func(path string) error { return os.Remove(filepath.Dir(path)) }, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, _, socket := newLock(t)
			must.Do(t, tc.prepare(socket+".lock"))
			_, err := AcquireLock(ctx, "unix://"+socket)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), socket+".lock") {
				t.Errorf("got %v, want %q and the path", err, tc.want)
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(socket), "nowhere")); err == nil {
				t.Error("a file was made through the link")
			}
		})
	}
	if _, err := AcquireLock(t.Context(), "/no/endpoint"); err == nil || !strings.Contains(err.Error(), "must be unix://") {
		t.Errorf("got %v, want a complaint about the endpoint", err)
	}
}

// Without locks the plugin serves anyway, and logs what that means.
func TestFileSystemWithoutLocks(t *testing.T) {
	for _, errno := range []error{unix.EBADF, unix.ENOLCK, unix.EOPNOTSUPP} {
		ctx, logs, socket := newLock(t)
		release := must.Get(acquireLock(ctx, socket, func(int, int) error { return errno }))(t)
		must.Do(t, release())
		if lines := logs.With("Nothing keeps a second process", errno.Error()); len(lines) != 1 {
			t.Errorf("%v: logged %q", errno, logs)
		}
	}
	ctx, _, socket := newLock(t)
	if _, err := acquireLock(ctx, socket, func(int, int) error { return unix.EIO }); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v, want %v", err, unix.EIO)
	}
}

// The next one waits until the lock is released. The end of a process closes the file, and that releases it, too.
func TestLockIsAwaited(t *testing.T) {
	ctx, logs, socket := newLock(t)
	release := must.Get(AcquireLock(ctx, "unix://"+socket))(t)
	file := must.Get(os.Open(socket + ".lock"))(t)
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("got %v, want that it is locked", err)
	}
	got := make(chan error, 1)
	go func() {
		release, err := AcquireLock(ctx, "unix://"+socket)
		if err == nil {
			err = release()
		}
		got <- err
	}()
	await(logs, "Another process serves this socket")
	must.Do(t, errors.Join(release(), <-got))
}

// TestProbeOfTheOwnSocket: it succeeds as long as the kubelet would get an answer. Its call is counted.
func TestProbeOfTheOwnSocket(t *testing.T) {
	s := serve(t, nil)
	must.Do(t, s.Probe(t.Context()))
	if got := <-s.observed; got != "Probe OK" || len(s.observed) > 0 {
		t.Errorf("calls: %s, and %d more", got, len(s.observed))
	}
	must.Do(t, os.Remove(s.path))
	if err := s.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "probe "+s.path) {
		t.Errorf("without a socket: %v", err)
	}

	// A process that listens and never answers.
	listener := must.Get(net.Listen("unix", s.path))(t)
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			t.Error(err)
		}
		cancel()
		accepted <- conn
	}()
	if err := s.Probe(ctx); err == nil {
		t.Error("no error without an answer")
	}
	if conn := <-accepted; conn != nil {
		conn.Close()
	}
}

// TestProbeOfTheRegistration: without its socket the kubelet no longer knows the driver. A plugin that does not register needs none.
func TestProbeOfTheRegistration(t *testing.T) {
	s := serve(t, nil)
	must.Get(s.registrar.GetInfo(t.Context(), &registration.InfoRequest{}))(t) // it serves there
	must.Do(t, os.Remove(s.registrationPath))
	if err := s.Probe(t.Context()); err == nil || err.Error() != "probe the registration: lstat "+s.registrationPath+": no such file or directory" {
		t.Error(err)
	}
	must.Do(t, serve(t, func(o *Options) { o.RegistrationDir = "" }).Probe(t.Context()))
}
