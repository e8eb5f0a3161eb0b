package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// install writes a copy of the program to a file.
func install(path string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(path, program, 0o755)
}

// inotifyd stands for busybox's program of that name, which Debian's busybox lacks: it writes a line
// for each name that is moved into a directory, until ctx ends. "-" says that lines are wanted,
// instead of a program to run, and "DIR:y" says where.
func inotifyd(ctx context.Context, out io.Writer, program, watched string) error {
	dir, isMove := strings.CutSuffix(watched, ":y")
	if program != "-" || !isMove {
		return errors.New(usage)
	}
	moves, err := watchDirectories([]string{dir + "/"})
	if err != nil {
		return err
	}
	defer moves.Close()
	stop := context.AfterFunc(ctx, func() { _ = moves.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 4096)
	for {
		n, err := moves.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for moves into %s: %w", dir, err)
		}
		for events := buffer[:n]; len(events) >= unix.SizeofInotifyEvent; {
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
			name := bytes.TrimRight(events[unix.SizeofInotifyEvent:size], "\x00")
			if _, err := fmt.Fprintf(out, "y\t%s\t%s\n", dir, name); err != nil {
				return err
			}
			events = events[size:]
		}
	}
}
