package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// registry is where the images are, and imageName the plugin's without its tag.
const (
	registry  = "ghcr.io/refvol/"
	imageName = registry + "refvol-plugin"
)

// release makes everything in a directory of its own and puts that in the place of the output, so
// that a release is whole or not there.
func release(ctx context.Context, o *options) error {
	dir := o.output + ".new"
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir) // fails after the rename
	built, err := buildAll(ctx, o, dir)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"images", func() error { return packImages(ctx, o, dir, built) }},
		{"bills of materials", func() error { return writeBills(o, dir, built) }},
		{"archives for krew", func() error { return writeKrew(o, dir, built) }},
		{"chart", func() error { return writeChart(o, dir) }},
		{"checksums", func() error { return writeChecksums(dir) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	if err := os.RemoveAll(o.output); err != nil {
		return err
	}
	return os.Rename(dir, o.output)
}

// binary is a program that was built for a platform.
type binary struct {
	program
	platform
	path string
}

// buildAll builds all programs for all of their platforms into dir.
func buildAll(ctx context.Context, o *options, dir string) ([]binary, error) {
	var built []binary
	for _, p := range o.programs {
		for _, on := range p.platforms {
			b := binary{p, on, filepath.Join(dir, p.name+"_"+on.String())}
			if on.os == "windows" {
				b.path += ".exe"
			}
			if err := runMake(ctx, o, []string{"GOOS=" + on.os, "GOARCH=" + on.arch}, "build-program", "PROGRAM="+p.name, "OUT="+b.path); err != nil {
				return nil, fmt.Errorf("build %s for %s: %w", p.name, on, err)
			}
			built = append(built, b)
		}
	}
	return built, nil
}

// packImages makes one image of each program, for all of its architectures of Linux.
func packImages(ctx context.Context, o *options, dir string, built []binary) error {
	for _, p := range o.programs {
		var paths []string
		for _, b := range built {
			if b.name == p.name && b.os == "linux" {
				paths = append(paths, b.path)
			}
		}
		if err := runMake(ctx, o, nil, "pack", "PROGRAM="+p.name, "BINARIES="+strings.Join(paths, " "),
			"ARCHIVE="+filepath.Join(dir, p.name+"-image.tar"), "IMAGE="+registry+p.name+":"+o.version); err != nil {
			return fmt.Errorf("pack %s: %w", p.name, err)
		}
	}
	return nil
}

// runMake runs a target of the checkout's Makefile, with env added to the environment.
func runMake(ctx context.Context, o *options, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "make")
	cmd.Args = append(append(cmd.Args, "--no-print-directory", "-C", o.root, "VERSION="+o.version, "REVISION="+o.revision), args...)
	cmd.Env = append(os.Environ(), env...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, errors.Join(err, ctx.Err()), output)
	}
	return nil
}

// write writes a file of the release.
func write(dir, name string, content []byte) error {
	return os.WriteFile(filepath.Join(dir, name), content, fs.FileMode(0o644))
}
