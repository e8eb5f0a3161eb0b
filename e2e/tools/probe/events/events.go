// Package events collects what the kernel reports about files and directories (inotify), as programs that watch a volume
// would see it. It must not know what makes the changes.
package events

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Watch is a watch of several paths. It is used by one goroutine, which closes it.
type Watch struct {
	fd    int
	paths map[int32]string
}

// generation stands for the name of a directory ..TIME, which differs each time.
const generation = "..TIME"

// kind is one bit of a mask, and its name.
type kind struct {
	bit  uint32
	name string
}

// kinds are all events but opens, reads and what follows of them, in the order of their bits.
func kinds() []kind {
	return []kind{
		{unix.IN_MODIFY, "MODIFY"},
		{unix.IN_ATTRIB, "ATTRIB"},
		{unix.IN_CLOSE_WRITE, "CLOSE_WRITE"},
		{unix.IN_MOVED_FROM, "MOVED_FROM"},
		{unix.IN_MOVED_TO, "MOVED_TO"},
		{unix.IN_CREATE, "CREATE"},
		{unix.IN_DELETE, "DELETE"},
		{unix.IN_DELETE_SELF, "DELETE_SELF"},
		{unix.IN_MOVE_SELF, "MOVE_SELF"},
	}
}

// New watches paths below a directory. It follows links, as most programs do: a path stays at the file that it leads to now.
func New(dir string, paths ...string) (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	var mask uint32
	for _, k := range kinds() {
		mask |= k.bit
	}
	w := &Watch{fd: fd, paths: map[int32]string{}}
	for _, path := range paths {
		watch, err := unix.InotifyAddWatch(fd, filepath.Join(dir, path), mask)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("watch %s: %w", path, err), w.Close())
		}
		w.paths[int32(watch)] = path
	}
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() error { return os.NewSyscallError("close", unix.Close(w.fd)) }

// Next returns the events since the last call. Each is a path, what has happened, and in a directory the name, such as ". CREATE a".
func (w *Watch) Next() ([]string, error) {
	var all []string
	buffer := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buffer)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return all, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return all, os.NewSyscallError("read from inotify", err)
		}
		for events := buffer[:n]; len(events) >= unix.SizeofInotifyEvent; {
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
			watch, mask := int32(binary.NativeEndian.Uint32(events)), binary.NativeEndian.Uint32(events[4:])
			if mask&unix.IN_Q_OVERFLOW != 0 {
				return all, errors.New("the kernel dropped events")
			}
			name := string(bytes.TrimRight(events[unix.SizeofInotifyEvent:size], "\x00"))
			if strings.HasPrefix(name, "..2") {
				name = generation
			}
			for _, k := range kinds() {
				if mask&k.bit != 0 {
					all = append(all, strings.TrimSpace(w.paths[watch]+" "+k.name+" "+name))
				}
			}
			events = events[size:]
		}
	}
}
