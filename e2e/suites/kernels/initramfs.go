package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// initramfs is a directory with what a machine starts with.
type initramfs string

func (a initramfs) addDirectory(name string) error {
	return os.MkdirAll(filepath.Join(string(a), name), 0o755)
}

// addText adds a program or another small file.
func (a initramfs) addText(name, text string) error {
	return errors.Join(a.addDirectory(filepath.Dir(name)), os.WriteFile(filepath.Join(string(a), name), []byte(text), 0o755))
}

// addFile adds a copy of a file of this machine.
func (a initramfs) addFile(name, source string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	return a.addText(name, string(content))
}

// pack has a busybox write the archive that the kernel unpacks. Everything belongs to root and can be executed, whoever builds.
func (a initramfs) pack(ctx context.Context, busybox, archive string) error {
	const script = `cd "$0" && chmod -R 0755 . && find . | "$1" cpio -o -R 0:0 -H newc >"$2"`
	if out, err := exec.CommandContext(ctx, "sh", "-c", script, string(a), busybox, archive).CombinedOutput(); err != nil {
		return fmt.Errorf("pack %s: %w\n%s", archive, err, out)
	}
	return nil
}
