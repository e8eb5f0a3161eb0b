package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

// expected is a file and the text that is to come into it.
type expected struct{ path, text string }

// seen tells when a file was read with its text.
type seen struct {
	File string `json:"file"`
	// At is the time when the read had ended, by the clock of package clock.
	At time.Duration `json:"at"`
}

// arrivals waits until each file has its text, where the texts come as volumes of
// ConfigMaps change: something in the file's directory is renamed. It reads the files when
// the kernel tells of that and costs nothing between, so that many can wait beside each
// other. It writes the clock's name to out once no change can be missed any more, and then
// each file when it has its text, in JSON. A file that has it from the start, or that can't
// be read at any time, is an error.
func arrivals(ctx context.Context, out io.Writer, timeout string, args []string) error {
	limit, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var files []expected
	for i := 0; i+1 < len(args); i += 2 {
		files = append(files, expected{args[i], args[i+1]})
	}
	renames, err := watchDirectories(files)
	if err != nil {
		return err
	}
	defer renames.Close()
	// The end of the time ends the read that waits.
	stop := context.AfterFunc(ctx, func() { _ = renames.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	missing, err := tell(io.Discard, files)
	if err != nil {
		return err
	}
	if len(missing) < len(files) {
		return errors.New("a file has its text already")
	}
	name, err := clock.Name()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, name); err != nil {
		return err
	}
	events := make([]byte, 4096)
	for len(missing) > 0 {
		if _, err := renames.Read(events); errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("%s: not the text within %s", missing[0].path, limit)
		} else if err != nil {
			return fmt.Errorf("wait for renames: %w", err)
		}
		if missing, err = tell(out, missing); err != nil {
			return err
		}
	}
	return nil
}

// watchDirectories has the kernel tell of what is renamed in the files' directories. Reads
// of what it returns wait for such events; the caller closes it.
func watchDirectories(files []expected) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	renames := os.NewFile(uintptr(fd), "inotify")
	for _, f := range files {
		if _, err := unix.InotifyAddWatch(fd, filepath.Dir(f.path), unix.IN_MOVED_TO); err != nil {
			err = fmt.Errorf("watch %s: %w", filepath.Dir(f.path), err)
			return nil, errors.Join(err, renames.Close())
		}
	}
	return renames, nil
}

// tell reads the files, writes those that have their text to out, and returns the others.
func tell(out io.Writer, files []expected) ([]expected, error) {
	var missing []expected
	for _, f := range files {
		content, err := os.ReadFile(f.path)
		if err != nil {
			return nil, err
		}
		if string(content) != f.text {
			missing = append(missing, f)
			continue
		}
		now, err := clock.Now()
		if err != nil {
			return nil, err
		}
		if err := json.NewEncoder(out).Encode(seen{f.path, now}); err != nil {
			return nil, err
		}
	}
	return missing, nil
}
