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

const (
	// pollInterval bounds how late a change is noticed by await and login. Polling, because the tests measure when a
	// reader sees a change, not when it is told of one.
	pollInterval = time.Millisecond
	// followInterval is how long follow and reload do not read at most.
	followInterval = 50 * time.Millisecond
)

// reading counts the reads, and those that went wrong.
type reading struct{ answers.Reading }

// fails counts a read that went wrong.
func (r *reading) fails(why string) { r.Failed, r.Error = r.Failed+1, why }

// until calls look each pollInterval until it says that all is as it should be. It writes "ready" to out after the first time, so that
// who makes the change knows when to, and at the end the reading in JSON.
func until(ctx context.Context, out io.Writer, timeout string, look func(*reading) (bool, error)) error {
	limit, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var r reading
	for {
		r.Reads++
		done, err := look(&r)
		if done || err != nil {
			return answer(out)(r.Reading, err)
		}
		if r.Reads == 1 {
			if _, err := fmt.Fprintln(out, "ready"); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("not so after %s: %+v", limit, r)
		}
	}
}

// await reads a file until it holds the text.
func await(ctx context.Context, out io.Writer, file, text, timeout string) error {
	return until(ctx, out, timeout, func(r *reading) (bool, error) {
		content, err := os.ReadFile(file)
		if err != nil {
			r.fails(err.Error())
		}
		return err == nil && string(content) == text, nil
	})
}

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

// tell writes it to out, in JSON and with the time.
func (t *told) tell(out io.Writer, at time.Duration) error {
	t.At = at
	return json.NewEncoder(out).Encode(t.Told)
}

// nameClock writes the clock's name to out.
func nameClock(out io.Writer) error {
	name, err := clock.Name()
	if err == nil {
		_, err = fmt.Fprintln(out, name)
	}
	return err
}

// follow reads the files until ctx ends: when something is renamed in a file's directory, as
// volumes of ConfigMaps change, and each followInterval. It tells of what the read before did not give. If it obeys, it ends with an error
// at a text that begins with bad, as a program does whose configuration is bad.
func follow(ctx context.Context, out io.Writer, obeys bool, files []string) error {
	renames, err := watchDirectories(files)
	if err != nil {
		return err
	}
	defer renames.Close()
	if err := nameClock(out); err != nil {
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
	at, err := clock.Now()
	if err != nil {
		return err
	}
	return now.tell(out, at)
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

// reload does what an application does that loads a file now and then: it opens it each period, and uses what it has
// open each followInterval. It names the clock, and then tells of each text that differs from the one before.
func reload(ctx context.Context, out io.Writer, period, path string) error {
	every, err := time.ParseDuration(period)
	if err != nil {
		return fmt.Errorf("period: %w", err)
	}
	if err := nameClock(out); err != nil {
		return err
	}
	last := told{answers.Told{File: path}}
	for ctx.Err() == nil {
		if err := last.useOpen(ctx, out, every); err != nil {
			return err
		}
	}
	return nil
}

// useOpen opens the file, and reads through that for a time.
func (t *told) useOpen(ctx context.Context, out io.Writer, during time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	file, err := os.Open(t.File)
	if err != nil {
		return err
	}
	defer file.Close()
	for ctx.Err() == nil {
		text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<20))
		if err != nil {
			return err
		}
		at, err := clock.Now()
		if err != nil {
			return err
		}
		if t.Reads++; t.Reads == 1 || string(text) != t.Text {
			t.Text = string(text)
			if err := t.tell(out, at); err != nil {
				return err
			}
		}
		select {
		case <-time.After(followInterval):
		case <-ctx.Done():
		}
	}
	return nil
}
