package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SwitchWatch tells when ..data of volumes is replaced. The kernel wakes it for that (inotify), so it costs next to
// nothing while nothing happens, and needs no luck to be in time. Its one goroutine ends with Close.
type SwitchWatch struct {
	fd       int // of inotify
	inotify  *os.File
	switched func(dir string) error
	ended    chan struct{}
	// err is what ended the goroutine early; it may be read once ended is closed.
	err error

	mu   sync.Mutex // guards dirs
	dirs map[int32]string
}

// WatchSwitches returns a watch of no volume yet. One goroutine calls switched with the root of a volume after each
// switch there, until that returns an error. The caller closes the watch.
func WatchSwitches(switched func(dir string) error) (*SwitchWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &SwitchWatch{fd: fd, inotify: os.NewFile(uintptr(fd), "inotify"), switched: switched, ended: make(chan struct{}), dirs: map[int32]string{}}
	go func() {
		defer close(w.ended)
		w.err = w.run()
	}()
	return w, nil
}

// Add watches the volume with this root. It is safe for concurrent use.
func (w *SwitchWatch) Add(dir string) error {
	// Nothing may arrive before the volume is known.
	w.mu.Lock()
	defer w.mu.Unlock()
	watch, err := unix.InotifyAddWatch(w.fd, dir, unix.IN_MOVED_TO)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	w.dirs[int32(watch)] = dir
	return nil
}

func (w *SwitchWatch) run() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.inotify.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err == nil {
			err = w.take(buf[:n])
		}
		if err != nil {
			return err
		}
	}
}

func (w *SwitchWatch) take(events []byte) error {
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		end := unix.SizeofInotifyEvent + int(event.Len)
		name := bytes.TrimRight(events[unix.SizeofInotifyEvent:end], "\x00")
		events = events[end:]
		if event.Mask&unix.IN_Q_OVERFLOW != 0 {
			return errors.New("more volumes were switched at once than the kernel keeps events of")
		}
		w.mu.Lock()
		dir := w.dirs[event.Wd]
		w.mu.Unlock()
		if dir == "" || string(name) != "..data" {
			continue
		}
		if err := w.switched(dir); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the goroutine and returns what went wrong for it.
func (w *SwitchWatch) Close() error {
	err := w.inotify.Close()
	<-w.ended
	return errors.Join(w.err, err)
}
