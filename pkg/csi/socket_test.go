package csi

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhatIsNotASocketIsNotReplaced(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(path string) error
	}{
		{"file", func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) }},
		{"directory", func(path string) error { return os.Mkdir(path, 0o700) }},
		{"link to a file", func(path string) error {
			return errors.Join(
				os.WriteFile(filepath.Dir(path)+"-other", []byte("precious"), 0o600), os.Symlink(filepath.Dir(path)+"-other", path))
		}},
		{"dangling link", func(path string) error { return os.Symlink("nowhere", path) }},
		{"link to a socket", func(path string) error {
			listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Dir(path) + "-other.sock", Net: "unix"})
			if err != nil {
				return err
			}
			listener.SetUnlinkOnClose(false)
			return errors.Join(listener.Close(), os.Symlink(filepath.Dir(path)+"-other.sock", path))
		}},
	} {
		for place, pathOf := range map[string]func(*testServer) string{
			"CSI socket":          func(s *testServer) string { return s.path },
			"registration socket": func(s *testServer) string { return s.registrationPath },
		} {
			t.Run(test.name+" at the "+place, func(t *testing.T) {
				s := newServer(t, nil)
				path := pathOf(s)
				must(t, test.make(path))
				before, err := os.Lstat(path)
				must(t, err)
				s.begin()
				err = <-s.ended
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
}

// A mode that is set by path could be set on another file meanwhile, and until then everybody whom the umask allows could use the socket.
func TestASocketIsMadeWithItsMode(t *testing.T) {
	dir := t.TempDir()
	events, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(t, err)
	defer unix.Close(events)
	if _, err := unix.InotifyAddWatch(events, dir, unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	listener, err := listen(t.Context(), filepath.Join(dir, "csi.sock"))
	must(t, err)
	defer listener.Close()
	if n, err := unix.Read(events, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the socket was changed after it was made (%d bytes of events, %v)", n, err)
	}
}
