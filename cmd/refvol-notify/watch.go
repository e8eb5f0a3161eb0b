package main

import (
	"errors"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// watcher wakes when something in a watched directory changes. It stops working if the node has no inotify instance or watch left; a user
// has only a few. close ends its goroutine.
type watcher struct {
	log   *slog.Logger
	wake  chan struct{}
	file  *os.File // nil: it does not work
	fd    int      // file.Fd would make reads block
	ended chan struct{}
}

// mask covers the switch of ..data and, with InPlace, the writes to files.
const mask = unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_ONLYDIR

func newWatcher(wake chan struct{}, log *slog.Logger) *watcher {
	w := &watcher{log: log, wake: wake}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.Warn("the kernel reports no changes: looks each second", "raise", "fs.inotify.max_user_instances", "err", err)
		return w
	}
	w.file, w.fd, w.ended = os.NewFile(uintptr(fd), "inotify"), fd, make(chan struct{})
	go forward(w.file, wake, w.ended)
	return w
}

// forward wakes at each event, until the file is closed.
func forward(file *os.File, wake chan<- struct{}, ended chan<- struct{}) {
	defer close(ended)
	buffer := make([]byte, 16<<10)
	for {
		if _, err := file.Read(buffer); err != nil {
			return
		}
		signalTo(wake)
	}
}

func signalTo(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default: // a signal is pending already
	}
}

func (w *watcher) isWorking() bool { return w.file != nil }

// add watches a directory. A directory that is watched already stays watched. Other errors are left to look.
func (w *watcher) add(dir string) {
	if w.file == nil {
		return
	}
	if _, err := unix.InotifyAddWatch(w.fd, dir, mask); errors.Is(err, unix.ENOSPC) {
		w.log.Warn("the kernel reports no changes: looks each second", "raise", "fs.inotify.max_user_watches", "dir", dir, "err", err)
		w.close()
	}
}

func (w *watcher) close() {
	if w.file != nil {
		_ = w.file.Close()
		<-w.ended
		w.file = nil
	}
}
