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

	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

const (
	// pollInterval bounds how late a change is noticed by await and grow. Polling, because the tests measure when a
	// reader sees a change, not when it is told of one.
	pollInterval = time.Millisecond
	// obeyInterval is the time between two reads of obey.
	obeyInterval = 200 * time.Millisecond
	// followInterval is how long follow and reload do not read at most.
	followInterval = 50 * time.Millisecond
)

// reading tells how texts came into files.
type reading struct {
	// Reads counts the reads, and Failed those of them that gave an error.
	Reads  int `json:"reads"`
	Failed int `json:"failed"`
	// Error tells of the last read that failed.
	Error string `json:"error,omitempty"`
	// Told is what the reads of grow gave: each error, and each text that differs from the one before.
	Told []told `json:"told,omitempty"`
}

// reader reads files. last has the last text of each. If it tells, it also keeps what the reads gave, for the suite to judge.
type reader struct {
	reading
	tells bool
	began time.Time
	last  map[string]string
}

// read reads a file once; ok tells whether it could.
func (r *reader) read(file string) (text string, ok bool) {
	content, err := os.ReadFile(file)
	if r.tells && errors.Is(err, fs.ErrNotExist) {
		// Between the look at ..data and that at the file the generation may have gone, as with the
		// kubelet's own volumes. Opening it again finds the next one.
		content, err = os.ReadFile(file)
	}
	text = string(content)
	r.Reads++
	last, isKnown := r.last[file]
	one := told{File: file, Text: text, Reads: r.Reads}
	if err != nil {
		r.Failed++
		r.Error, one.Error = err.Error(), err.Error()
	} else {
		r.last[file] = text
	}
	if r.tells && (err != nil || !isKnown || text != last) {
		one.At = time.Since(r.began)
		r.Told = append(r.Told, one)
	}
	return text, err == nil
}

// until reads the files until each holds the text. It writes "ready" to out after the first reads, so that who makes
// the change knows when to, and at the end the reading in JSON.
func (r *reader) until(ctx context.Context, out io.Writer, timeout, text string, files []string) error {
	limit, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		missing := ""
		for _, file := range files {
			if got, ok := r.read(file); !ok || got != text {
				missing = file
			}
		}
		if missing == "" {
			break
		}
		if r.Reads == len(files) {
			if _, err := fmt.Fprintln(out, "ready"); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s has not the text after %s: %+v", missing, limit, r.reading)
		}
	}
	return answer(out)(r.reading, nil)
}

// told is a text that a file got, or a read that went wrong.
type told struct {
	File string `json:"file"`
	Text string `json:"text"`
	// Error is set if the read failed.
	Error string `json:"error,omitempty"`
	// Reads counts the reads of the file up to this one.
	Reads int `json:"reads"`
	// At is the time after the read, by the clock of package clock; of grow it is the time since its begin.
	At time.Duration `json:"at"`
}

// tell writes it to out, in JSON and with the time.
func (t *told) tell(out io.Writer, at time.Duration) error {
	t.At = at
	return json.NewEncoder(out).Encode(t)
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
// volumes of ConfigMaps change, and each followInterval. It tells of what the read before did not give.
func follow(ctx context.Context, out io.Writer, files []string) error {
	renames, err := watchDirectories(files)
	if err != nil {
		return err
	}
	defer renames.Close()
	if err := nameClock(out); err != nil {
		return err
	}
	readers := make([]reader, len(files))
	for i := range readers {
		readers[i] = reader{tells: true, last: map[string]string{}}
	}
	events := make([]byte, 4096)
	for ctx.Err() == nil {
		for i, file := range files {
			r := &readers[i]
			r.Told = nil
			r.read(file)
			at, err := clock.Now()
			if err != nil {
				return err
			}
			for i := range r.Told {
				if err := r.Told[i].tell(out, at); err != nil {
					return err
				}
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

// obey is a program that reads its configuration again and again, and ends with an error if that is bad. It tells of each change.
func obey(ctx context.Context, out io.Writer, file string) error {
	ticker := time.NewTicker(obeyInterval)
	defer ticker.Stop()
	for seen := ""; ; {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) { // as in reader.read
			content, err = os.ReadFile(file)
		}
		if err != nil {
			return err
		}
		if text := string(content); text != seen {
			if _, err := fmt.Fprintln(out, text); err != nil {
				return err
			}
			seen = text
		}
		if strings.HasPrefix(seen, "bad") {
			return fmt.Errorf("%s is bad", file)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// arrivals waits until each file has its text, and tells when. It reads the files when something is renamed in their
// directories and costs nothing between, so that many can wait beside each other. No change can be missed once it has
// named the clock. A file that has its text before, or that can't be read at any time, is an error.
func arrivals(ctx context.Context, out io.Writer, timeout string, args []string) error {
	limit, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var files []string
	texts := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		files = append(files, args[i])
		texts[args[i]] = args[i+1]
	}
	renames, err := watchDirectories(files)
	if err != nil {
		return err
	}
	defer renames.Close()
	// The end of the time ends the read that waits.
	stop := context.AfterFunc(ctx, func() { _ = renames.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	events := make([]byte, 4096)
	for first := true; ; first = false {
		for file, text := range texts {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if string(content) != text {
				continue
			}
			if first {
				return fmt.Errorf("%s has its text already", file)
			}
			at, err := clock.Now()
			if err != nil {
				return err
			}
			if err := (&told{File: file}).tell(out, at); err != nil {
				return err
			}
			delete(texts, file)
		}
		if len(texts) == 0 {
			return nil
		}
		if first {
			if err := nameClock(out); err != nil {
				return err
			}
		}
		if _, err := renames.Read(events); err != nil {
			return fmt.Errorf("wait for renames, %s: %w", limit, err)
		}
	}
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
	last := told{File: path}
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
