package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
)

// tree lists everything at and below root and follows no link.
func tree(root string) ([]answers.Entry, error) {
	entries := []answers.Entry{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if cannotList := errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist); cannotList && len(entries) > 0 {
			// The walk comes again to a directory that it could not read, right after
			// the first time. One that was removed can be mounted still.
			entries[len(entries)-1].Denied = true
			return nil
		}
		if err != nil {
			return err
		}
		e, err := describe(path)
		if err != nil {
			return err
		}
		e.Path, err = filepath.Rel(root, path)
		entries = append(entries, e)
		return err
	})
	return entries, err
}

func describe(path string) (answers.Entry, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return answers.Entry{}, fmt.Errorf("lstat %s: %w", path, err)
	}
	e := answers.Entry{Type: "other", Mode: fmt.Sprintf("%04o", st.Mode&0o7777), UID: st.Uid, GID: st.Gid}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Type = "dir"
	case unix.S_IFLNK:
		e.Type = "link"
		e.Link, err = os.Readlink(path)
	case unix.S_IFREG:
		e.Type = "file"
		e.Content, err = os.ReadFile(path)
		if e.Denied = errors.Is(err, fs.ErrPermission); e.Denied {
			err = nil
		}
	}
	return e, err
}

// install writes a copy of the program to a file.
func install(path string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(path, program, 0o755)
}

// read copies the file to out.
func read(out io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	return err
}

// write tries to write text to the file, which it creates if it is missing, and
// tells how that went: a refusal is an answer, not an error.
func write(out io.Writer, path, text string) error {
	err := os.WriteFile(path, []byte(text), 0o600)
	result := "ok"
	if err != nil {
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			return err
		}
		result = unix.ErrnoName(errno)
	}
	_, err = fmt.Fprintln(out, result)
	return err
}
