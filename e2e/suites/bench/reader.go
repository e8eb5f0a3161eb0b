package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reader tells what new content of volumes can be read, and when. The kernel wakes it
// when ..data of a volume is switched; it reads the file then, by its path as a container
// does, and takes the time when it has the bytes. So it costs next to nothing while nothing
// happens, and needs no luck to be in time.
//
// Its one goroutine calls seen and ends with close. mu guards names.
type reader struct {
	inotify *os.File
	seen    func(path, content string, at time.Time)
	ended   chan struct{}
	// err is what ended the goroutine early; it may be read once ended is closed.
	err error

	mu    sync.Mutex
	paths map[int32]string
}

// newReader returns a reader of no file yet. seen is called by one goroutine, with a file's
// path, its new content, and the time at which it was read.
func newReader(seen func(path, content string, at time.Time)) (*reader, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify_init: %w", err)
	}
	r := &reader{
		inotify: os.NewFile(uintptr(fd), "inotify"), seen: seen,
		ended: make(chan struct{}), paths: map[int32]string{},
	}
	go r.run()
	return r, nil
}

// add has a file read whenever its volume is switched. dir is the volume's root.
func (r *reader) add(dir, path string) error {
	connection, err := r.inotify.SyscallConn()
	if err != nil {
		return err
	}
	// Nothing may arrive before the path is known.
	r.mu.Lock()
	defer r.mu.Unlock()
	controlErr := connection.Control(func(fd uintptr) {
		var watch int
		watch, err = unix.InotifyAddWatch(int(fd), dir, unix.IN_MOVED_TO)
		r.paths[int32(watch)] = path
	})
	if err := errors.Join(controlErr, err); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	return nil
}

func (r *reader) run() {
	defer close(r.ended)
	buf := make([]byte, 64<<10)
	for {
		n, err := r.inotify.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err == nil {
			err = r.take(buf[:n])
		}
		if err != nil {
			r.err = err
			return
		}
	}
}

// take reads the file of each volume that an event tells of.
func (r *reader) take(events []byte) error {
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		events = events[unix.SizeofInotifyEvent+int(event.Len):]
		if event.Mask&unix.IN_Q_OVERFLOW != 0 {
			return errors.New("more volumes were switched at once than the kernel keeps events of")
		}
		r.mu.Lock()
		path := r.paths[event.Wd]
		r.mu.Unlock()
		if path == "" || event.Mask&unix.IN_MOVED_TO == 0 {
			continue
		}
		content, err := readSmall(path)
		at := time.Now()
		if err != nil {
			return fmt.Errorf("a reader saw: %w", err)
		}
		r.seen(path, content, at)
	}
	return nil
}

// close ends the goroutine and returns what went wrong for it.
func (r *reader) close() error {
	err := r.inotify.Close()
	<-r.ended
	return errors.Join(r.err, err)
}

// readSmall returns the content of a file of a few bytes with as few calls as can be: what
// a reader of many volumes takes, it takes from what it times.
func readSmall(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var buf [64]byte
	n, err := unix.Read(fd, buf[:])
	if err == nil && n == len(buf) {
		err = errors.New("more than was to be there")
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return string(buf[:n]), nil
}
