package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// initramfs writes the files that a machine starts with, as a cpio archive of the form
// "newc", which the kernel unpacks. Everything belongs to root.
type initramfs struct {
	file *os.File
	out  *bufio.Writer
	// made are the directories that are in the archive.
	made  map[string]bool
	inode int
}

// createInitramfs makes the archive's file. The caller must close the archive.
func createInitramfs(name string) (*initramfs, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return &initramfs{file: f, out: bufio.NewWriterSize(f, 1<<20), made: map[string]bool{".": true}}, nil
}

// The types of a file in the archive.
const (
	regularFile = 0o100000
	directory   = 0o040000
)

// addDirectory adds a directory and those above it, unless they are there.
func (a *initramfs) addDirectory(name string) error {
	if a.made[name] {
		return nil
	}
	if err := a.addDirectory(path.Dir(name)); err != nil {
		return err
	}
	a.made[name] = true
	return a.entry(name, directory|0o755, 0, strings.NewReader(""))
}

// addText adds a program or another small file. Names have no slash at the beginning.
func (a *initramfs) addText(name, text string) error {
	if err := a.addDirectory(path.Dir(name)); err != nil {
		return err
	}
	return a.entry(name, regularFile|0o755, int64(len(text)), strings.NewReader(text))
}

// addFile adds a copy of a file of this machine.
func (a *initramfs) addFile(name, source string) error {
	if err := a.addDirectory(path.Dir(name)); err != nil {
		return err
	}
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return a.entry(name, regularFile|0o755, info.Size(), f)
}

// entry writes a header, a name and a content, each padded to four bytes.
func (a *initramfs) entry(name string, mode int, size int64, content io.Reader) error {
	a.inode++
	const links, none = 1, 0
	_, err := fmt.Fprintf(a.out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, none, none, links, none, size, none, none, none, none, len(name)+1, none)
	if err != nil {
		return err
	}
	const header = 110
	if _, err := a.out.WriteString(name + "\x00" + padding(header+int64(len(name))+1)); err != nil {
		return err
	}
	written, err := io.Copy(a.out, content)
	if err == nil && written != size {
		err = fmt.Errorf("%s changed its size while it was read", name)
	}
	if err == nil {
		_, err = a.out.WriteString(padding(size))
	}
	return err
}

func padding(size int64) string { return "\x00\x00\x00"[:(4-size%4)%4] }

// close ends the archive.
func (a *initramfs) close() error {
	return errors.Join(a.entry("TRAILER!!!", 0, 0, strings.NewReader("")), a.out.Flush(), a.file.Close())
}
