package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

// followInterval is how long follow does not read at most.
const followInterval = 50 * time.Millisecond

// readFile reads a file of a volume. Between the look at ..data and that at the file the generation may have gone, as with the
// kubelet's own volumes. Opening it again finds the next one.
func readFile(file string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		content, err = os.ReadFile(file)
	}
	return content, err
}

// told is the last that was told of a file.
type told struct{ answers.Told }

// follow reads the files until ctx ends: when something is renamed in a file's directory, as
// volumes of ConfigMaps change, and each followInterval. It tells of what the read before did not give. If it obeys, it ends with an error
// at a text that begins with bad, as a program does whose configuration is bad.
func follow(ctx context.Context, out io.Writer, obeys bool, files []string) error {
	renames, err := watchDirectories(files)
	if err != nil {
		return err
	}
	defer renames.Close()
	name, err := clock.Name()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, name); err != nil {
		return err
	}
	last := make([]told, len(files))
	events := make([]byte, 4096)
	for ctx.Err() == nil {
		for i, file := range files {
			if err := last[i].follow(out, file); err != nil {
				return err
			}
			if obeys && strings.HasPrefix(last[i].Text, "bad") {
				return fmt.Errorf("%s is bad", file)
			}
		}
		if err := renames.SetReadDeadline(time.Now().Add(followInterval)); err != nil {
			return fmt.Errorf("wait for renames: %w", err)
		}
		if _, err := renames.Read(events); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("wait for renames: %w", err)
		}
	}
	return nil
}

// follow reads the file, and tells of it if it has another text than before, or can't be read.
func (t *told) follow(out io.Writer, file string) error {
	content, err := readFile(file)
	t.Reads++
	now := told{answers.Told{File: file, Text: string(content), Reads: t.Reads}}
	switch {
	case err != nil:
		now.Error = err.Error()
	case t.File != "" && now.Text == t.Text:
		return nil
	default:
		t.File, t.Text = file, now.Text
	}
	if now.At, err = clock.Now(); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(now.Told)
}

// watchDirectories has the kernel tell of what is renamed in the files' directories. Reads
// of what it returns wait for such events; the caller closes it.
func watchDirectories(files []string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	renames := os.NewFile(uintptr(fd), "inotify")
	for _, file := range files {
		if _, err := unix.InotifyAddWatch(fd, filepath.Dir(file), unix.IN_MOVED_TO); err != nil {
			err = fmt.Errorf("watch %s: %w", filepath.Dir(file), err)
			return nil, errors.Join(err, renames.Close())
		}
	}
	return renames, nil
}
